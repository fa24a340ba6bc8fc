"""Videos that `tessera serve` makes, and pictures that its clients send: the files are those of `tessera generate`."""
import base64
import json
import os
import time
import uuid

import pytest

from files import read_png
from harness import ROOT
from server import Server

VIDEO, KLEIN = ROOT / "models" / "shapes-video", ROOT / "tests" / "golden" / "tiny-flux2-klein"
PICTURES = [KLEIN / "golden" / name for name in ("70x101.png", "96x64.png")]
PROMPT = "a red circle moves left to right"
VIDEO_FIELDS = {"width": 64, "height": 48, "num_frames": 17, "num_inference_steps": 2, "seed": 5}
KLEIN_FIELDS = {"width": 32, "height": 32, "num_inference_steps": 2, "seed": 5, "guidance_scale": 2}
TYPES = {"mp4": "video/mp4", "webm": "video/webm", "gif": "image/gif", "png": "image/png"}


@pytest.fixture
def serve(box):
    servers = []

    def start(*words):
        folder = box.folder.parent / f"server{len(servers)}"
        folder.mkdir()
        servers.append(Server(box.program, folder, "--dtype", "fp32", *words).start())
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def generated(box, name, prompt, fields, *words):
    """The file that `tessera generate` writes."""
    flags = [word for field, value in fields.items() for word in (f"--{field.replace('_', '-')}", str(value))]
    outcome = box.run("generate", prompt, "--dtype", "fp32", *flags, *words, "-o", name)
    assert outcome.code == 0, outcome
    return (box.folder / name).read_bytes()


def post_form(server, path, fields, files):
    """A form of multipart/form-data; `files` are (field, path)."""
    mark = uuid.uuid4().hex
    parts = [f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items()]
    for name, file in files:
        head = f'--{mark}\r\nContent-Disposition: form-data; name="{name}"; filename="{file.name}"\r\nContent-Type: image/png\r\n\r\n'
        parts.append(head.encode() + file.read_bytes() + b"\r\n")
    body = b"".join(parts) + f"--{mark}--\r\n".encode()
    return server.send("POST", path, body, {"Content-Type": f"multipart/form-data; boundary={mark}"}, timeout=120)


def uploads(server):
    folder = server.folder / "state" / "uploads"
    return os.listdir(folder) if folder.is_dir() else []


def expect_no_uploads(server):
    """They are removed just after a job has ended."""
    deadline = time.monotonic() + 60
    while left := uploads(server):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def pixels(box, png):
    (box.folder / "pixels.png").write_bytes(png)
    return read_png(box.folder / "pixels.png")[:3]


@pytest.mark.parametrize("words", [[], ["--ulysses-degree", "2"]], ids=["one", "two"])
def test_videos_are_those_of_the_command(box, serve, words):
    server = serve("--model", VIDEO, *words)
    jobs = {kind: server.submit(prompt=PROMPT, format=kind, **VIDEO_FIELDS) for kind in ("mp4", "webm", "gif")}
    for kind, job in jobs.items():
        job = server.wait_for(job)
        assert job["state"] == "succeeded" and job["results"][0]["content_type"] == TYPES[kind], job
        assert server.result(job) == generated(box, f"a.{kind}", PROMPT, VIDEO_FIELDS, "--model", VIDEO, *words), kind
    status, headers, part = server.send("GET", job["results"][0]["url"], headers={"Range": "bytes=3-9"})
    assert (status, part) == (206, server.result(job)[3:10]), headers


def test_a_video_of_openai_is_that_of_the_command(box, serve):
    server = serve("--model", VIDEO)
    fields = {name: value for name, value in VIDEO_FIELDS.items() if name not in ("width", "height")}
    video = server.json("POST", "/v1/videos", {"prompt": PROMPT, "size": "64x48", **fields})
    assert server.wait_for(video["id"])["state"] == "succeeded"
    status, body = server.get(f"/v1/videos/{video['id']}/content")
    assert status == 200 and body == generated(box, "a.mp4", PROMPT, VIDEO_FIELDS, "--model", VIDEO)


def test_a_video_of_one_frame_is_a_picture(box, serve):
    server = serve("--model", VIDEO)
    fields = {**VIDEO_FIELDS, "num_frames": 1}
    job = server.wait_for(server.submit(prompt=PROMPT, **fields))
    assert [result["content_type"] for result in job["results"]] == ["image/png"], job
    assert server.result(job) == generated(box, "a.png", PROMPT, fields, "--model", VIDEO)


def test_pictures_that_clients_send(box, serve):
    server = serve("--model", KLEIN)
    words = [word for path in PICTURES for word in ("--image", path)]
    expected = pixels(box, generated(box, "a.png", "a cat", KLEIN_FIELDS, "--model", KLEIN, *words))
    texts = [base64.b64encode(path.read_bytes()).decode() for path in PICTURES]
    sent = {"prompt": "a cat", "image": [texts[0], "data:image/png;base64," + texts[1]], **KLEIN_FIELDS}
    assert pixels(box, server.result(server.wait_for(server.submit(**sent)))) == expected
    fields = {"prompt": "a cat", "size": "32x32", "response_format": "b64_json",
              **{name: value for name, value in KLEIN_FIELDS.items() if name not in ("width", "height")}}
    status, _, body = post_form(server, "/v1/images/edits", fields, [("image[]", path) for path in PICTURES])
    assert status == 200, body
    assert pixels(box, base64.b64decode(json.loads(body)["data"][0]["b64_json"])) == expected
    expect_no_uploads(server)
    # Those of jobs that were cancelled or refused are not kept either.
    jobs = [server.submit(**{**sent, "num_inference_steps": 250}) for _ in range(2)]
    assert len(uploads(server)) == 4
    for job in reversed(jobs):
        server.json("DELETE", f"/v1/jobs/{job}")
        assert server.wait_for(job)["state"] == "cancelled"
    status, _, body = server.send("POST", "/v1/jobs", {**sent, "width": 33})
    assert status == 400, body
    expect_no_uploads(server)
