"""Tests the processes of `tessera serve`."""
import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from harness import MODEL, ROOT
from running import alive, children, name

TINY = ["--model", MODEL, "--dtype", "fp32"]


class Server:
    """A running server. What it prints is read as it comes."""

    def __init__(self, box, *words):
        self.folder = box.folder.parent / "state"
        self.process = subprocess.Popen(
            [box.program, "serve", *TINY, "--listen", "127.0.0.1:0", "--folder", self.folder, *map(os.fspath, words)], cwd=box.folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.lines, self.changed = [], threading.Condition()
        self.readers = [threading.Thread(target=self.read, args=[stream], daemon=True)
                        for stream in (self.process.stdout, self.process.stderr)]
        for reader in self.readers:
            reader.start()
        self.url = re.search(r"http://\S+\d", self.wait_for("listening at "))[0]

    def read(self, stream):
        for line in stream:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()

    def wait_for(self, words, count=1):
        """Returns the line of that number that has these words."""
        deadline = time.monotonic() + 100
        with self.changed:
            while len(found := [line for line in self.lines if words in line]) < count:
                assert self.process.poll() is None and time.monotonic() < deadline, (words, self.lines)
                self.changed.wait(1)
            return found[count - 1]

    def get(self, path):
        """Returns the status of an answer and its JSON."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def post(self, path, value):
        request = urllib.request.Request(self.url + path, json.dumps(value).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def finished(self, job):
        """Waits for the end of a job, also while no front answers, and returns it."""
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                state = self.get(f"/v1/jobs/{job}")[1]
                if state["state"] not in ("queued", "running", "encoding"):
                    return state
            time.sleep(0.05)
        raise AssertionError((job, self.lines))

    def processes(self):
        """The numbers of all processes below the supervisor, by their names."""
        found, left = {}, children(self.process.pid)
        while left:
            process = left.pop()
            with contextlib.suppress(OSError):
                found.setdefault(name(process), []).append(process)
                left += children(process)
        return found

    def end(self, number=signal.SIGTERM):
        """Returns the exit code."""
        everyone = [process for group in self.processes().values() for process in group]
        self.process.send_signal(number)
        code = self.process.wait(100)
        deadline = time.monotonic() + 10
        while left := [process for process in everyone if alive(process)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)
        return code


@pytest.fixture
def serve(box):
    servers = []

    def start(*words):
        servers.append(Server(box, *words))
        return servers[-1]

    memory = set(os.listdir("/dev/shm"))
    yield start
    for server in servers:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)
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


def test_serve_ends_with_what_a_world_finds_wrong(box):
    # The front may answer before a world has found that.
    for code, needle, words in [(3, "nothing", ["--model", "nothing"]), (2, "--timeout", ["--model", MODEL, "--timeout", "5"]),
                                (2, "--ulysses-degree", ["--model", MODEL, "--ulysses-degree", "64"])]:
        outcome = box.run("serve", "--folder", box.folder.parent / "state", "--listen", "127.0.0.1:0", *words)
        assert outcome.code == code and outcome.err.count("\n") == 1, outcome
        assert outcome.err.startswith("tessera: [") and needle in outcome.err, outcome


def test_serve_says_where_it_listens_and_drains(serve):
    server = serve("--worlds", "2")
    for world in 0, 1:
        server.wait_for(f"world {world} is ready")
    assert server.get("/health")[0] == 200
    assert sorted(server.processes()) == ["tessera:front", "tessera:w0", "tessera:w1"]
    assert server.end() == 0


def test_serve_has_its_layout_planned(box, serve):
    machine = box.folder.parent / "mine.json"  # of processors, with the times of a GPU's data sheet
    machine.write_text(json.dumps(json.loads((ROOT / "machines" / "l40.json").read_text()) | {"device": "cpu", "name": "mine"}))
    server = serve("--nproc", "2", "--parallel", "auto", "--machine", machine)
    assert " on 2 ranks, " in server.wait_for("planned: ")
    server.wait_for("world 0 is ready")
    deadline = time.monotonic() + 100
    while (ranks := [world["ranks"] for world in server.get("/v1/status")[1]["worlds"]]) == [0]:  # the world tells the front itself
        assert time.monotonic() < deadline, server.lines
        time.sleep(0.01)
    assert ranks == [2]
    assert server.end() == 0
    box.refuse(2, "[--parallel] auto chooses the layout; leave out --ulysses-degree", "serve", *TINY, "--nproc", "2", "--parallel", "auto",
               "--ulysses-degree", "2")
    box.refuse(2, "[--max-staleness] is for --parallel auto", "serve", *TINY, "--max-staleness", "any")


def test_serve_has_a_folder_alone(box, serve):
    server = serve()
    box.refuse(2, "another server has", "serve", *TINY, "--listen", "127.0.0.1:0", "--folder", server.folder)
    assert server.end(signal.SIGKILL) == -signal.SIGKILL  # with all its processes
    assert serve().end() == 0


def test_serve_removes_its_socket_file(box, serve):
    path = box.folder.parent / "socket"
    server = serve("--listen", f"unix:{path}")
    assert path.is_socket()
    assert server.end() == 0
    assert not path.exists()


@pytest.mark.parametrize("layout", [[], ["--use-cfg-parallel"], ["--pipefusion-parallel-degree", "2"], ["--worlds", "2"]])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_serve_finishes_jobs_whatever_is_lost(serve, layout, number):
    server = serve(*layout)
    server.wait_for("world 0 is ready")
    request = {"prompt": "a cat", "seed": 3, "height": 32, "width": 48, "use_resolution_binning": False, "num_inference_steps": 20}
    for victim in sorted(server.processes()):
        job = server.post("/v1/jobs", request)["id"]
        os.kill(server.processes()[victim][0], number)
        assert server.finished(job)["state"] == "succeeded", (victim, server.lines)
        deadline = time.monotonic() + 100
        while victim not in server.processes():
            assert time.monotonic() < deadline, (victim, server.lines)
            time.sleep(0.05)
    assert server.end() == 0
