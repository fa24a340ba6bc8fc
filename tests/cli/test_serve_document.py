"""Tests that `tessera serve` answers as docs/openapi.yaml says. contract_server.py does so with many more requests."""
import base64
import json

import jsonschema
import pytest
import yaml

from harness import MODEL, ROOT
from server import Server

DOCUMENT = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
SMALL = {"prompt": "a cat", "height": 32, "width": 48, "use_resolution_binning": False, "num_inference_steps": 2, "seed": 1}


@pytest.fixture(scope="module")
def served(program, tmp_path_factory):
    with Server(program, tmp_path_factory.mktemp("served"), "--model", MODEL, "--dtype", "fp32") as server:
        yield server


def resolve(value):
    while "$ref" in value:
        found = DOCUMENT
        for name in value["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        value = found
    return value


def ask(server, method, form, body=None, query="", **names):
    """Sends a request to the path of this form, and returns its answer if that is as documented."""
    status, headers, data = server.send(method, form.format(**names) + query, body, timeout=120)
    answers = DOCUMENT["paths"][form][method.lower()]["responses"]
    answer = resolve(answers.get(str(status)) or answers[f"{status // 100}XX"])
    kind = headers["Content-Type"].partition(";")[0]
    assert kind in answer["content"], (method, form, status, kind, data)
    if kind != "application/json":
        return data
    value = json.loads(data)
    jsonschema.Draft202012Validator({**answer["content"][kind]["schema"], "components": DOCUMENT["components"]}).validate(value)
    return value


def test_paths_take_the_methods_of_the_document(served):
    for form, operations in DOCUMENT["paths"].items():
        methods = {method.upper() for method in operations if method != "parameters"}
        status, headers, _ = served.send("OPTIONS", form.replace("{file}", "main.js").replace("{", "").replace("}", ""))
        assert status == 204, form
        assert set(headers["Allow"].split(", ")) == methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set()), (form, headers["Allow"])


def test_answers_are_those_of_the_document(served):
    job = ask(served, "POST", "/v1/jobs", SMALL)
    assert b"event: state" in ask(served, "GET", "/v1/jobs/{id}/events", query="?previews=1", id=job["id"])
    assert ask(served, "GET", "/v1/jobs/{id}", id=job["id"])["state"] == "succeeded"
    png = ask(served, "GET", "/v1/jobs/{id}/results/{n}", id=job["id"], n=0)
    assert ask(served, "GET", "/v1/jobs")["data"]
    assert ask(served, "DELETE", "/v1/jobs/{id}", id=job["id"])["deleted"]
    for form in ("/v1/jobs/{id}", "/v1/jobs/{id}/events", "/v1/jobs/{id}/preview", "/v1/videos/{id}", "/v1/videos/{id}/content", "/v1/images/{id}/content",
                 "/v1/models/{id}"):
        assert ask(served, "GET", form, id=job["id"])["error"]["code"].endswith("not_found")
    assert ask(served, "POST", "/v1/jobs", {**SMALL, "seed": -1})["error"]["param"] == "seed"
    picture = ask(served, "POST", "/v1/images/generations", {"prompt": "a cat", "size": "48x32", "num_inference_steps": 2, "nothing": 1})
    assert ask(served, "GET", "/v1/images/{id}/content", id=picture["id"]).startswith(b"\x89PNG")
    assert b"completed" in ask(served, "POST", "/v1/images/generations", {"prompt": "a", "size": "48x32", "num_inference_steps": 2, "stream": True})
    for form in ("/v1/images/edits", "/v1/images/variations", "/v1/videos", "/v1/videos/edits"):
        assert ask(served, "POST", form, {"prompt": "a cat"})["error"]["code"] == "unsupported_operation"
    txt2img = {"prompt": "a cat", "steps": 2, "width": 48, "height": 32}
    assert ask(served, "POST", "/sdapi/v1/txt2img", txt2img)["images"]
    assert ask(served, "POST", "/sdapi/v1/txt2img", {**txt2img, "steps": "many"})["detail"][0]["loc"] == ["body", "steps"]
    assert ask(served, "POST", "/sdapi/v1/png-info", {"image": base64.b64encode(png).decode()})["info"].startswith("a cat")
    assert ask(served, "POST", "/sdapi/v1/png-info", {"image": ""})["error"] == "invalid_image"
    ask(served, "POST", "/internal/progress", {"id_task": "x"})
    for form, operations in DOCUMENT["paths"].items():
        if "get" in operations and "{" not in form:
            ask(served, "GET", form)
