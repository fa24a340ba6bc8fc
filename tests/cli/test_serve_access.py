"""Tests what clients of `tessera serve` learn of each other, of the server, and of its files: nothing."""
import base64
import itertools
import json
import stat
import zlib

import pytest

from files import png_chunks
from harness import MODEL, ROOT
from server import Server

KEYS = {"ann": "0123456789abcdef-ann", "bob": "0123456789abcdef-bob"}
ANN, BOB = ({"Authorization": f"Bearer {key}"} for key in KEYS.values())
SMALL = {"prompt": "a cat", "height": 32, "width": 48, "use_resolution_binning": False, "num_inference_steps": 2, "seed": 1}
LONG = {**SMALL, "height": 1024, "width": 1024, "num_inference_steps": 800}  # some hundred times as long as a test has requests for


def serving(program, folder, *words):
    flags = ["--dtype", "fp32", "--max-steps", "2000", *words]
    with Server(program, folder, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def keyed(program, tmp_path_factory):
    """A server of ann and bob."""
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys.txt"
    keys.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    keys.chmod(0o600)
    yield from serving(program, folder, "--model", MODEL, "--api-keys", keys)


@pytest.fixture(scope="module")
def opened(program, tmp_path_factory):
    """A server without keys."""
    yield from serving(program, tmp_path_factory.mktemp("opened"), "--model", MODEL, "--allow-origin", "https://good.example")


@pytest.fixture(scope="module")
def editing(program, tmp_path_factory):
    """A server whose model takes pictures."""
    yield from serving(program, tmp_path_factory.mktemp("editing"), "--model", ROOT / "tests" / "golden" / "tiny-flux2-klein")


def submit(server, headers, **fields):
    return server.json("POST", "/v1/jobs", {**SMALL, **fields}, status=202, headers=headers)["id"]


def finished(server, headers, id):
    """Returns the job at the end of its events."""
    status, _, events = server.send("GET", f"/v1/jobs/{id}/events", headers=headers, timeout=120)
    assert status == 200, events
    return json.loads([line for line in events.decode().splitlines() if line.startswith("data: ")][-1].removeprefix("data: "))


def texts_of(png):
    """Returns the keywords and texts of a PNG."""
    texts = {}
    for kind, data in png_chunks(png):
        if kind == b"tEXt":
            word, _, text = data.partition(b"\0")
            texts[word.decode()] = text.decode("latin-1")
        elif kind in (b"iTXt", b"zTXt"):
            word, _, rest = data.partition(b"\0")
            flag, rest = (rest[0], rest[2:].split(b"\0", 2)[2]) if kind == b"iTXt" else (1, rest[1:])
            texts[word.decode()] = (zlib.decompress(rest) if flag else rest).decode()
    return texts


def test_jobs_of_another_key_are_not_there(keyed):
    done = submit(keyed, ANN)
    assert finished(keyed, ANN, done)["state"] == "succeeded"
    picture = keyed.json("POST", "/v1/images/generations", {"prompt": "a cat", "size": "48x32", "num_inference_steps": 2}, headers=ANN)["id"]
    runs = submit(keyed, ANN, **LONG)
    places = [f"/v1/jobs/{id}{what}" for id in (done, picture, runs) for what in ("", "/events", "/events?previews=1", "/results/0", "/preview")]
    places += [f"/v1/images/{picture}/content", f"/v1/videos/{runs}", f"/v1/videos/{runs}/content"]
    for method, place in [*itertools.product(["GET"], places), *itertools.product(["DELETE"], [f"/v1/jobs/{done}", f"/v1/jobs/{runs}"])]:
        status, _, body = keyed.send(method, place, headers=BOB)
        assert status == 404 and done.encode() not in body and runs.encode() not in body, (method, place, body)
        status, _, body = keyed.send(method, place)
        assert status == 401, (method, place, body)
    assert keyed.json("GET", "/v1/jobs?limit=100", headers=BOB)["data"] == []
    assert keyed.json("GET", f"/v1/jobs?after={done}", headers=BOB)["data"] == []
    assert keyed.json("POST", "/sdapi/v1/interrupt", headers=BOB) == {}
    assert keyed.json("GET", "/sdapi/v1/progress", headers=BOB)["state"]["job_count"] == 0
    jobs = {job["id"]: job["state"] for job in keyed.json("GET", "/v1/jobs?order=desc&limit=100", headers=ANN)["data"]}
    assert jobs.keys() >= {done, picture, runs} and jobs[runs] in ("queued", "running", "encoding", "succeeded"), jobs  # not cancelled
    keyed.json("DELETE", f"/v1/jobs/{runs}", headers=ANN)


def test_a_key_of_idempotency_is_of_its_owner(keyed):
    name = {"Idempotency-Key": "the same"}
    first, second = submit(keyed, {**ANN, **name}), submit(keyed, {**BOB, **name})
    assert first != second and submit(keyed, {**ANN, **name}) == first
    status, _, body = keyed.send("POST", "/v1/jobs", {**SMALL, "seed": 2}, {**BOB, **name})
    assert status == 422, body


def test_addresses_lead_to_no_files(opened):
    done = submit(opened, {})
    assert finished(opened, {}, done)["state"] == "succeeded"
    ids = ["..", "%2e%2e", "..%2f..%2fjournal", "%2fetc%2fpasswd", "%00", f"{done}%00", f"{done}%2fresults", f"..%2f{done}", done.upper(), done[:-1],
           f"{done} ".replace(" ", "%20"), "*", "%25", "%ff", "x" * 4000]
    numbers = ["-1", "+0", "1", "0x0", "1e0", "%30%00", "99999999999999999999999", "..", "%2e%2e%2f0", "0%2f..%2f0", "%20", "0.png"]
    places = [form.format(id) for id in ids for form in ("/v1/jobs/{}", "/v1/jobs/{}/results/0", "/v1/jobs/{}/preview", "/v1/jobs/{}/events",
                                                        "/v1/images/{}/content", "/v1/videos/{}/content", "/page/{}", "/v1/models/{}")]
    places += [f"/v1/jobs/{done}/results/{number}" for number in numbers]
    places += [f"/v1/images/{done}/content", "/page/", "/page/../index.html", "/../../etc/passwd", "//etc/passwd", "/.", "/v1/jobs//results/0"]
    for place in places:
        status, _, body = opened.send("GET", place)
        assert status in (400, 404) and b"error" in body, (place, status, body)
    assert opened.send("GET", f"/v1/jobs/{done}/results/0")[0] == 200


def test_files_of_the_server_are_not_read(opened):
    secret = ROOT / "README.md"
    for fields in ({"image": str(secret)}, {"reference": f"file://{secret}"}, {"reference_path": [str(secret)]}, {"model": str(secret)},
                   {"output": "/tmp/out.png"}, {"config": str(secret)}, {"image_size": ["64x64"], "image": "/etc/passwd"}):
        status, _, body = opened.send("POST", "/v1/jobs", {**SMALL, **fields})
        assert status == 400 and b"Tessera" not in body, (fields, body)


def test_requests_and_keys_are_told_to_nobody(keyed):
    wrong, prompt = "0123456789abcdef-wrong", "unheardof words of ann"
    id = submit(keyed, ANN, prompt=prompt, negative_prompt=prompt + " not")
    assert finished(keyed, ANN, id)["state"] == "succeeded"
    for fields in ({"prompt": prompt, "height": -5}, {"prompt": prompt, "scheduler": prompt}, {prompt: 1}, {"prompt": [prompt] * 100}):
        assert keyed.send("POST", "/v1/jobs", fields, ANN)[0] == 400
    keyed.json("POST", "/sdapi/v1/txt2img", {"prompt": prompt, "steps": 2, "width": 48, "height": 32, "force_task_id": prompt}, headers=ANN)
    for headers in ({"Authorization": f"Bearer {wrong}"}, {"X-Api-Key": wrong},
                    {"Authorization": "Basic " + base64.b64encode(f"ann:{wrong}".encode()).decode()}):
        status, _, body = keyed.send("GET", "/v1/jobs", headers=headers)
        assert status == 401 and wrong.encode() not in body
    assert keyed.send("GET", f"/v1/jobs?state={wrong}", headers=BOB)[0] == 400
    told = [keyed.get(place, headers=BOB)[1].decode() for place in ("/metrics", "/v1/status", "/v1/jobs", "/internal/pending-tasks", "/ready", "/health")]
    for text in (keyed.log_text(), *told):
        for secret in (prompt, wrong, id, *KEYS.values()):
            assert secret not in text, secret
    assert stat.S_IMODE((keyed.folder / "state").stat().st_mode) == 0o700


def test_pictures_tell_of_their_own_request_alone(keyed):
    ids = {name: submit(keyed, headers, prompt=f"a cat of {name}") for name, headers in (("ann", ANN), ("bob", BOB))}  # of one batch
    for name, headers in (("ann", ANN), ("bob", BOB)):
        job = finished(keyed, headers, ids[name])
        texts = texts_of(keyed.get(job["results"][0]["url"], headers=headers)[1])
        text = json.dumps(texts)
        other = {"ann": "bob", "bob": "ann"}[name]
        assert f"a cat of {name}" in text and f"of {other}" not in text, text
        for secret in (*KEYS.values(), *ids.values(), str(ROOT), str(keyed.folder)):
            assert secret not in text, (secret, text)


def test_who_calls_by_which_name(opened, keyed):
    own = f"127.0.0.1:{opened.port}"
    good = "https://good.example"
    for status, headers in [(200, {}), (200, {"Host": f"localhost:{opened.port}"}), (200, {"Host": "LOCALHOST"}), (403, {"Host": "evil.example"}),
                            (403, {"Host": f"evil.example:{opened.port}"}), (403, {"Host": "127.0.0.1.evil.example"}), (400, {"Host": ""}),
                            (200, {"Origin": f"http://{own}"}), (200, {"Origin": good}), (403, {"Origin": "https://evil.example"}),
                            (403, {"Origin": "null"}), (403, {"Origin": f"{good}.evil.example"}), (403, {"Origin": f"http://x@{own}.evil.example"}),
                            (403, {"Host": "evil.example", "Origin": "http://evil.example"})]:
        got, answered, body = opened.send("GET", "/v1/jobs", headers=headers)
        assert got == status, (headers, got, body)
        assert answered["Access-Control-Allow-Origin"] == (good if headers.get("Origin") == good else None), headers
        got, answered, body = opened.send("OPTIONS", "/v1/jobs", headers={**headers, "Access-Control-Request-Method": "POST"})
        assert got == (204 if status == 200 else status), (headers, got, body)
    status, _, _ = opened.send("POST", "/v1/jobs", json.dumps(SMALL).encode(), {"Content-Type": "text/plain"})  # as a form of any page sends it
    assert status == 415
    assert keyed.send("GET", "/v1/jobs", headers={**ANN, "Host": "paint.example.org"})[0] == 200
    assert keyed.send("GET", "/v1/jobs", headers={**ANN, "Origin": "https://evil.example"})[0] == 403


def test_messages_name_no_folders_of_the_server(opened):
    wrong = [{"num_inference_steps": 1500}, {"num_inference_steps": 1500, "scheduler": "pndm"}, {"scheduler_option": ["nothing=1"]}, {"scheduler": "x"},
             {"scheduler_option": ["timestep_spacing=leading", "steps_offset=900"], "num_inference_steps": 900}, {"max_sequence_length": 4000},
             {"device": "cuda"}, {"dtype": "bf16"}, {"output_type": "latent"}, {"height": 33, "width": 1}, {"format": "../x"}, {"clip_skip": 1},
             {"prompt": []}, {"mask_strategy": ["x"]}, {"image": base64.b64encode(b"no picture").decode()}]
    messages = []
    for fields in wrong:
        status, _, body = opened.send("POST", "/v1/jobs", {**SMALL, **fields})
        assert status in (202, 400), (fields, body)
        messages.append(finished(opened, {}, json.loads(body)["id"])["error"] if status == 202 else json.loads(body)["error"]["message"])
    assert "and the options of scheduler/scheduler_config.json, got 1500" in messages[0]
    for fields, message in zip(wrong, messages):
        assert not any(place in str(message) for place in (str(ROOT), str(opened.folder), "golden")), (fields, message)


@pytest.mark.parametrize("broken", [lambda png: png[:8], lambda png: png[:300], lambda png: png[:-1],
                                    lambda png: png[:100] + bytes(100) + png[200:]])
def test_pictures_that_are_broken_are_the_clients_fault(editing, broken):
    picture = broken((ROOT / "tests" / "golden" / "tiny-flux2-klein" / "golden" / "96x64.png").read_bytes())
    body = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 2, "seed": 1,
            "images": [{"image_url": "data:image/png;base64," + base64.b64encode(picture).decode()}]}
    status, _, answer = editing.send("POST", "/v1/images/edits", body, timeout=120)
    error = json.loads(answer)["error"]
    assert status == 400 and "/" not in error["message"], answer
    assert error["message"].startswith("[image] "), answer
