"""Tests the processes of `tessera serve`."""
import ctypes
import json
import os
import signal
import time

import pytest

from harness import MODEL, ROOT
from server import Server

TINY = ["--model", MODEL, "--dtype", "fp32"]


@pytest.fixture
def serve(box):
    servers = []

    def start(*words, model=MODEL):
        flags = ["--model", model, "--dtype", "fp32", *words]
        servers.append(Server(box.program, box.folder.parent, *flags, cwd=box.folder).start(wait=0))
        return servers[-1]

    memory = set(os.listdir("/dev/shm"))
    yield start
    for server in servers:
        server.kill()
    assert not [left for left in set(os.listdir("/dev/shm")) - memory if "tessera" in left]
    assert box.files() == []


def test_serve_refuses_wrong_values(box):
    folder = ["--folder", box.folder.parent / "state"]
    keys = box.folder.parent / "keys.txt"
    keys.write_text("one 0123456789abcdef\n")
    for words, needle in [(["--worlds", "0"], "--worlds"), (["--drain", "-1"], "--drain"), (["--max-queue", "many"], "--max-queue"),
                          (["--results-ttl", "0"], "--results-ttl"), (["--dtype", "int8"], "--dtype"), (["--ulysses-degree", "0"], "--ulysses-degree"),
                          (["--listen", "nowhere", *folder], "nowhere"), (["--listen", "127.0.0.1:port", *folder], "127.0.0.1:port"),
                          (["--listen", "0.0.0.0:0", *folder], "--api-keys"), (["--folder", "/proc/nothing"], "/proc/nothing"),
                          (["--api-keys", keys, *folder], "keys.txt")]:
        box.refuse(2, needle, "serve", "--model", MODEL, *words)
    box.refuse(3, "nothing.txt", "serve", "--model", MODEL, "--api-keys", "nothing.txt", *folder)
    box.refuse(2, "unknown", "serve", "--height", "64")


def test_serve_refuses_what_no_world_can_do_before_it_listens(box):
    folder = box.folder.parent / "state"
    for code, needle, words in [(3, "nothing", ["--model", "nothing"]), (2, "--timeout", ["--model", MODEL, "--timeout", "5"]),
                                (2, "--ulysses-degree", ["--model", MODEL, "--ulysses-degree", "64"]),
                                (2, "needs 2 ranks", ["--model", MODEL, "--nproc", "3", "--ulysses-degree", "2"])]:
        box.refuse(code, needle, "serve", "--folder", folder, "--listen", "127.0.0.1:0", *words)
        assert not folder.exists()


def test_serve_ends_with_what_a_world_finds_wrong(box):
    model = box.copy_model()
    weights = next((model / "transformer").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    # The front may answer before a world has found that.
    outcome = box.run("serve", "--folder", box.folder.parent / "state", "--listen", "127.0.0.1:0", "--model", model)
    assert outcome.code == 3 and outcome.err.count("\n") == 1, outcome
    assert outcome.err.startswith("tessera: [") and weights.name in outcome.err, outcome


def test_serve_says_where_it_listens_and_drains(serve):
    server = serve("--worlds", "2")
    for world in 0, 1:
        server.wait_for_line(f"world {world} is ready")
    assert server.get("/health")[0] == 200
    assert sorted(server.processes()) == ["tessera:front", "tessera:w0", "tessera:w1"]
    assert server.stop() == 0


def test_serve_has_its_layout_planned(box, serve):
    machine = box.folder.parent / "mine.json"  # of processors, with the times of a GPU's data sheet
    machine.write_text(json.dumps(json.loads((ROOT / "machines" / "l40.json").read_text()) | {"device": "cpu", "name": "mine"}))
    server = serve("--nproc", "2", "--parallel", "auto", "--machine", machine)
    assert " on 2 ranks, " in server.wait_for_line("planned: ")
    server.wait_for_line("world 0 is ready")
    deadline = time.monotonic() + 100
    while not (status := server.json("GET", "/v1/status"))["ready"]:  # the world tells the front itself
        assert time.monotonic() < deadline, server.log_text()
        time.sleep(0.01)
    assert [world["ranks"] for world in status["worlds"]] == [2]
    assert server.stop() == 0
    box.refuse(2, "[--parallel] auto chooses the layout; leave out --ulysses-degree", "serve", *TINY, "--nproc", "2", "--parallel", "auto",
               "--ulysses-degree", "2")
    box.refuse(2, "[--max-staleness] is for --parallel auto", "serve", *TINY, "--max-staleness", "any")


def test_serve_has_a_folder_alone(box, serve):
    server = serve()
    box.refuse(2, "another server has", "serve", *TINY, "--listen", "127.0.0.1:0", "--folder", server.folder / "state")
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL  # with all its processes
    assert serve().stop() == 0


def test_serve_removes_its_socket_file(box, serve):
    path = box.folder.parent / "socket"
    server = serve("--listen", f"unix:{path}")
    assert path.is_socket()
    assert server.stop() == 0
    assert not path.exists()


@pytest.mark.parametrize("layout", [[], ["--use-cfg-parallel"], ["--pipefusion-parallel-degree", "2"], ["--worlds", "2"]])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_serve_finishes_jobs_whatever_is_lost(serve, layout, number):
    server = serve(*layout)
    server.wait_for_line("world 0 is ready")
    request = {"prompt": "a cat", "seed": 3, "height": 32, "width": 48, "use_resolution_binning": False, "num_inference_steps": 20}
    for victim in sorted(server.processes()):
        job = server.submit(**request)
        os.kill(server.processes()[victim][0], number)
        assert server.wait_for(job)["state"] == "succeeded", (victim, server.log_text())
        deadline = time.monotonic() + 100
        while victim not in server.processes():
            assert time.monotonic() < deadline, (victim, server.log_text())
            time.sleep(0.05)
    assert server.json("GET", "/v1/status")["restarts"] == 1
    assert server.stop() == 0


def hang(process):
    """Keeps the main thread of a process from going on until somebody kills it. Its parent does not hear of that, as it does of a stop."""
    attach, any_child = 16, 0x40000000  # PTRACE_ATTACH, __WALL
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(attach, process, None, None) == 0, os.strerror(ctypes.get_errno())
    deadline = time.monotonic() + 100
    while True:
        found, status = os.waitpid(process, any_child | os.WNOHANG)
        if found and not os.WIFSTOPPED(status):
            return
        assert time.monotonic() < deadline, f"{process} was not killed"
        time.sleep(0.05)


@pytest.mark.parametrize("victim", ["tessera:front", "tessera:w0"])
def test_serve_replaces_what_hangs(serve, victim):
    server = serve()
    server.wait_for_line("world 0 is ready")
    job = server.submit(prompt="a cat", height=32, width=48, use_resolution_binning=False, num_inference_steps=250)
    while server.json("GET", f"/v1/jobs/{job}")["step"] < 3:
        pass
    hang(server.processes()[victim][0])
    server.wait_for_line(f"{'front' if victim.endswith('front') else 'world 0'}: has been silent for 1")
    assert server.wait_for(job)["state"] == "succeeded"
    assert server.stop() == 0


def test_serve_says_what_generate_would_warn_of(serve):
    server = serve()
    request = {"prompt": "circle " * 50, "max_sequence_length": 20, "height": 32, "width": 48, "use_resolution_binning": False, "num_inference_steps": 2}
    job = server.submit(**request, guidance_scale=1, negative_prompt="red")
    warnings = server.wait_for(job)["warnings"]
    assert [warning for warning in warnings if warning.startswith("negative_prompt has no effect: guidance_scale is 1")], warnings
    assert [warning for warning in warnings if warning.startswith("[tokenizer] the prompt 'circle ")], warnings
    assert server.stop() == 0


@pytest.mark.parametrize("model, fields", [
    ("tiny-pixart", {"max_sequence_length": 20}), ("tiny-sd", {}), ("tiny-sdxl", {"prompt_2": "a red square " * 50}),
    ("tiny-z-image", {"max_sequence_length": 20}), ("tiny-flux2-klein", {"max_sequence_length": 20}), ("tiny-open-sora", {"num_frames": 1})])
def test_serve_says_of_which_prompts_generate_would_cut_the_end(box, serve, model, fields):
    """Each text encoder of a family cuts its own text. Nothing else is refused or silent."""
    model = ROOT / "tests" / "golden" / model
    fields = {"height": 64, "width": 64, "num_inference_steps": 2, "seed": 1, **fields}
    prompt = "a blue circle " * 150
    words = [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    outcome = box.run("generate", prompt, "--model", model, "--dtype", "fp32", *words, "-o", box.folder.parent / "alone.png")
    assert outcome.code == 0, outcome
    expected = [line.removeprefix("warning: ") for line in outcome.err.splitlines() if " is too long: its last " in line]
    assert len(expected) == 1 + ("prompt_2" in fields), outcome
    server = serve(model=model)
    job = server.wait_for(server.submit(**{**fields, "prompt": prompt}))
    assert job["state"] == "succeeded" and [each for each in job["warnings"] if " is too long: " in each] == expected, job
    assert server.stop() == 0
