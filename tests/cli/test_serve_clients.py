"""The clients that people use, against `tessera serve`: those of OpenAI's API and of AUTOMATIC1111's."""
import base64
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
import time

import openai
import PIL.Image
import pytest
import requests
import webuiapi

from harness import ROOT
from server import Server


def serving(program, folder, model):
    with Server(program, folder, "--model", model) as server:
        yield server
        assert server.stop() == 0, server.log_text()


@pytest.fixture(scope="module")
def pictures(program, tmp_path_factory):
    yield from serving(program, tmp_path_factory.mktemp("serve"), ROOT / "models" / "shapes")


@pytest.fixture(scope="module")
def videos(program, tmp_path_factory):
    yield from serving(program, tmp_path_factory.mktemp("serve"), ROOT / "models" / "shapes-video")


def openai_client(server, **options):
    return openai.OpenAI(base_url=f"{server.url}v1", api_key="none", **options)


def by_node(server, part):
    """What a part of openai_client.js prints."""
    modules = ROOT / ".venv" / "npm" / "node_modules"
    if shutil.which("node") is None or not (modules / "openai").is_dir():
        pytest.skip("no node with the package openai; tools/setup.sh clients installs them")
    script = pathlib.Path(__file__).parent / "openai_client.js"
    done = subprocess.run(["node", script, server.url, part], capture_output=True, timeout=300, env={**os.environ, "NODE_PATH": os.fspath(modules)})
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def webui_client(server):
    return webuiapi.WebUIApi(host="127.0.0.1", port=server.port)


def size_of(data):
    return PIL.Image.open(io.BytesIO(data)).size


FAST = {"num_inference_steps": 2, "seed": 5}


def examples(document, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / "docs" / document).read_text(), re.M | re.S)


def test_the_documents_examples_of_curl(pictures, tmp_path):
    """As they stand: curl connects to another port than they name."""
    (tmp_path / ".curlrc").write_text(f'connect-to = "127.0.0.1:8188:127.0.0.1:{pictures.port}"\nnoproxy = "*"\nfail\nsilent\nshow-error\n')
    environment, answers = {**os.environ, "CURL_HOME": os.fspath(tmp_path)}, []
    for document in ("serving.md", "serve-apis.md"):
        for line in "".join(examples(document, "sh")).splitlines():
            if not line.startswith("curl "):
                continue
            done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, timeout=300)
            assert done.returncode == 0, (line, done.stderr)
            answers.append(done.stdout.decode())
            if len(answers) == 1:
                environment["ID"] = json.loads(done.stdout)["id"]
    job, events, file, openai_answer, sdapi_answer = answers
    assert json.loads(job)["state"] in ("queued", "running")
    assert '"state":"succeeded"' in events.replace(" ", "") and "event: step" in events
    assert file == "" and size_of((tmp_path / "picture.png").read_bytes()) == (128, 128)
    assert size_of(base64.b64decode(json.loads(openai_answer)["data"][0]["b64_json"])) == (64, 64)
    assert size_of(base64.b64decode(json.loads(sdapi_answer)["images"][0])) == (128, 128)


def test_the_documents_example_of_python(pictures, monkeypatch):
    original, names = openai.OpenAI, {}
    monkeypatch.setattr(openai, "OpenAI", lambda base_url, **options: original(base_url=base_url.replace(":8188/", f":{pictures.port}/"), **options))
    [example] = examples("serve-apis.md", "python")
    exec(example, names)
    assert size_of(base64.b64decode(names["picture"].data[0].b64_json)) == (64, 64)


def test_openai_pictures_are_those_of_the_command(pictures, box):
    client = openai_client(pictures)
    assert [model.id for model in client.models.list()] == ["shapes"]
    assert client.models.retrieve("shapes").owned_by == "tessera"
    answer = client.images.generate(model="shapes", prompt="a red circle", size="64x64", response_format="b64_json", extra_body=FAST)
    png = base64.b64decode(answer.data[0].b64_json)
    outcome = box.run("generate", "a red circle", "--model", ROOT / "models" / "shapes", "--height", "64", "--width", "64",
                      "--num-inference-steps", "2", "--seed", "5", "-o", "one.png")
    assert outcome.code == 0, outcome
    assert png == (box.folder / "one.png").read_bytes()
    assert answer.size == "64x64" and answer.output_format == "png" and answer.created > 1_600_000_000


def test_openai_answers_with_addresses_and_other_formats(pictures):
    client = openai_client(pictures)
    answer = client.images.generate(prompt="a blue square", n=2, size="64x64", response_format="url", output_format="webp", extra_body=FAST)
    assert len(answer.data) == 2 and not answer.data[0].b64_json
    for each in answer.data:
        reply = requests.get(each.url)
        assert reply.headers["Content-Type"] == "image/webp"
        assert size_of(reply.content) == (64, 64)
    both = client.images.generate(prompt="a", size="64x64", output_format="jpeg", extra_body=FAST).data[0]
    assert base64.b64decode(both.b64_json) == requests.get(both.url).content


def test_openai_streams_partial_pictures(pictures):
    events = list(openai_client(pictures).images.generate(prompt="a red circle", size="64x64", stream=True, partial_images=2,
                                                          extra_body={"num_inference_steps": 12, "seed": 1}))
    assert events[-1].type == "image_generation.completed"
    assert size_of(base64.b64decode(events[-1].b64_json)) == (64, 64)
    partials = events[:-1]
    assert len(partials) <= 2  # fewer where the picture is there first
    assert [event.partial_image_index for event in partials] == list(range(len(partials)))
    for event in partials:
        assert event.type == "image_generation.partial_image" and size_of(base64.b64decode(event.b64_json))


def test_openai_raises_what_is_wrong(pictures):
    client = openai_client(pictures)
    with pytest.raises(openai.NotFoundError) as caught:
        client.images.generate(model="dall-e-3", prompt="a")
    assert caught.value.code == "model_not_found" and "shapes" in str(caught.value)
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.generate(prompt="a", size="63x64")
    assert caught.value.param == "size"
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.edit(image=b"\x89PNG\r\n\x1a\n", prompt="a")
    assert caught.value.code == "unsupported_operation"
    with pytest.raises(openai.BadRequestError):
        client.videos.create(prompt="a")


def test_openai_videos_are_made_and_deleted(videos):
    client = openai_client(videos)
    fast = {"num_inference_steps": 2, "num_frames": 17, "seed": 3}
    video = client.videos.create_and_poll(prompt="a red circle moves left to right", extra_body=fast, poll_interval_ms=200)
    assert video.status == "completed" and video.progress == 100 and video.error is None, video
    content = client.videos.download_content(video.id).read()
    assert content[4:8] == b"ftyp"
    assert [each.id for each in client.videos.list()] == [video.id]
    second = client.videos.create(prompt="a blue square", extra_body=fast)
    assert second.status in ("queued", "in_progress")
    assert len(client.videos.list(limit=1).data) == 1
    for each in (video, second):
        assert client.videos.delete(each.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(video.id)
    assert not client.videos.list().data


def test_openai_of_node_gets_the_same_pictures(pictures):
    seen = by_node(pictures, "pictures")
    assert seen["models"] == ["shapes"]
    answer = openai_client(pictures).images.generate(prompt="a red circle", size="64x64", extra_body=FAST)
    assert seen["inline"]["data"][0]["b64_json"] == answer.data[0].b64_json
    assert [each["type"] for each in seen["linked"]] == ["image/webp"] * 2
    assert [size_of(base64.b64decode(each["data"])) for each in seen["linked"]] == [(64, 64)] * 2


def test_openai_of_node_streams_partial_pictures(pictures):
    *partials, last = by_node(pictures, "stream")
    assert last["type"] == "image_generation.completed" and size_of(base64.b64decode(last["b64_json"])) == (64, 64)
    assert [event["type"] for event in partials] == ["image_generation.partial_image"] * len(partials)
    assert [event["partial_image_index"] for event in partials] == list(range(len(partials)))
    assert len(partials) <= 2 and all(size_of(base64.b64decode(event["b64_json"])) for event in partials)


def test_openai_of_node_raises_what_is_wrong(pictures):
    assert by_node(pictures, "refusals") == [{"kind": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"},
                                             {"kind": "BadRequestError", "status": 400, "code": "invalid_value", "param": "size"},
                                             {"kind": "BadRequestError", "status": 400, "code": "unsupported_operation", "param": None}]


def test_openai_of_node_makes_videos(videos):
    seen = by_node(videos, "videos")
    assert seen["created"]["status"] in ("queued", "in_progress") and seen["video"]["status"] == "completed", seen["video"]
    assert base64.b64decode(seen["content"])[4:8] == b"ftyp"
    assert seen["listed"] == [seen["created"]["id"]] and seen["deleted"]["deleted"]
    assert seen["gone"]["kind"] == "NotFoundError"


def test_webuiapi_makes_pictures(pictures):
    client = webui_client(pictures)
    result = client.txt2img(prompt="a red circle", negative_prompt="blurry", seed=7, steps=2, width=64, height=64, batch_size=2,
                            sampler_name="DPM++ 2M", scheduler="Karras", cfg_scale=3)
    assert [image.size for image in result.images] == [(64, 64)] * 2
    assert result.info["all_seeds"] == [7, 8]
    # The second picture is the one that its seed makes alone.
    alone = client.txt2img(prompt="a red circle", negative_prompt="blurry", seed=8, steps=2, width=64, height=64,
                           sampler_name="DPM++ 2M Karras", cfg_scale=3)
    assert list(alone.image.getdata()) == list(result.images[1].getdata())
    assert "Sampler: DPM++ 2M, Schedule type: Karras" in result.info["infotexts"][0]
    read = client.png_info(result.image)
    assert read.info.startswith("a red circle") and "Steps: 2" in read.info


def test_webuiapi_reads_every_list(pictures):
    client = webui_client(pictures)
    assert client.util_get_current_model() == "shapes" and client.util_get_model_names() == ["shapes"]
    client.util_set_model("shape")
    client.util_wait_for_ready(check_interval=0.1)
    client.set_options(client.get_options())
    assert "Euler a" in client.util_get_sampler_names() and "karras" in client.util_get_scheduler_names()
    for name in ("cmd_flags", "sd_vae", "upscalers", "latent_upscale_modes", "loras", "hypernetworks", "face_restorers",
                 "realesrgan_models", "prompt_styles", "scripts", "embeddings", "memory"):
        getattr(client, f"get_{name}")()
    client.refresh_checkpoints()
    with pytest.raises(RuntimeError) as caught:
        client.txt2img(prompt="a", sampler_name="DPM adaptive", width=64, height=64)
    assert caught.value.args[0] == 404
    with pytest.raises(RuntimeError) as caught:
        client.img2img(images=[PIL.Image.new("RGB", (64, 64))], prompt="a")
    assert caught.value.args[0] == 501


def test_webuiapi_sees_and_ends_what_runs(pictures):
    client, results = webui_client(pictures), []
    thread = threading.Thread(target=lambda: results.append(client.txt2img(prompt="a", steps=250, width=256, height=256)))
    thread.start()
    other = webui_client(pictures)
    seen = {}
    for _ in range(600):
        seen = other.get_progress()
        if seen["state"]["sampling_step"] > 0 and seen["current_image"]:
            break
        time.sleep(0.05)
    assert 0 < seen["progress"] < 1 and seen["state"]["job_count"] == 1, seen
    assert size_of(base64.b64decode(seen["current_image"]))
    other.interrupt()
    thread.join(60)
    assert results and results[0].images == []
    assert other.get_progress()["state"]["job_count"] == 0


def test_requests_as_web_uis_send_them(pictures):
    """Open WebUI sends an empty Basic header; LibreChat sends no sampler, and reads infotexts."""
    headers = {"Authorization": "Basic Og=="}
    options = requests.get(f"{pictures.url}sdapi/v1/options", headers=headers).json()
    assert requests.post(f"{pictures.url}sdapi/v1/options", headers=headers, json=options).status_code == 200
    body = {"prompt": "a red circle", "negative_prompt": "", "cfg_scale": 4.5, "steps": 2, "width": 64, "height": 64}
    answer = requests.post(f"{pictures.url}sdapi/v1/txt2img", headers=headers, json=body).json()
    assert size_of(base64.b64decode(answer["images"][0].split(",")[0])) == (64, 64)
    info = json.loads(answer["info"])
    assert "Steps: 2" in info["infotexts"][0] and info["seed"] == info["all_seeds"][0]
