"""Starts `tessera serve` and talks to it as a client does, with the standard library alone."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import time

TEXT = {"prompt": "a red circle on a white background"}
ENDED = ("succeeded", "failed", "cancelled", "expired")
START = 120  # seconds until a model is loaded on a busy machine


def parents():
    """The processes of this machine that have not ended, each with the one above it."""
    found = {}
    for each in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = each.read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if state not in "ZX":
                found[int(head.split()[0])] = int(parent)
    return found


def descendants(pid):
    """The processes below `pid` that have not ended, the nearest first."""
    found, family, generation = parents(), [], {pid}
    while generation := {child for child, parent in found.items() if parent in generation}:
        family += sorted(generation)
    return family


def wait_until_gone(processes, seconds=10):
    deadline = time.monotonic() + seconds
    while left := [pid for pid in parents() if pid in processes]:
        assert time.monotonic() < deadline, f"still there after {seconds} s: {left}"
        time.sleep(0.01)


class Server:
    """A server of its own, with its state and its log in `folder`. `flags` are those of the command line. The first start chooses a port,
    which later ones have too."""

    def __init__(self, program, folder, *flags, env=None, cwd=None):
        self.program, self.folder, self.flags, self.env, self.cwd = program, pathlib.Path(folder), flags, env, cwd
        self.port, self.process = None, None

    def start(self, wait=START):
        """Waits until a model is loaded; without `wait`, until the server listens."""
        self.log = open(self.folder / "server.log", "ab")
        self.log_begin = self.log.tell()
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": os.fspath(self.folder / "cache"), **(self.env or {})}
        self.process = subprocess.Popen([self.program, "serve", "--listen", f"127.0.0.1:{self.port or 0}", "--folder",
                                         os.fspath(self.folder / "state"), *map(str, self.flags)], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log, env=variables, cwd=self.cwd, start_new_session=True)
        try:
            if self.port is None:
                self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", self.wait_for_line("listening at "))[1])
            if wait:
                self.wait_until_ready(wait)
        except BaseException:
            self.kill()
            raise
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self):
        return self.start() if self.process is None else self

    def __exit__(self, *_):
        self.kill()

    def log_text(self):
        """What it has printed since its last start."""
        return (self.folder / "server.log").read_bytes()[self.log_begin:].decode(errors="replace")

    def wait_for_line(self, words, seconds=START):
        """Returns the first line that it prints with these words."""
        deadline = time.monotonic() + seconds
        while not (found := [line for line in self.log_text().split("\n")[:-1] if words in line]):
            assert self.process.poll() is None, f"the server has ended: {self.log_text()}"
            assert time.monotonic() < deadline, f"no line with {words!r} after {seconds} s: {self.log_text()}"
            time.sleep(0.02)
        return found[0]

    def wait_until_ready(self, seconds=START):
        """Returns how long it took."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            assert self.process.poll() is None, f"the server has ended: {self.log_text()}"
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/ready", timeout=2)[0] == 200:
                    return time.monotonic() - begin
            time.sleep(0.02)
        raise AssertionError(f"not ready after {seconds} s: {self.log_text()[-2000:]}")

    def stop(self, number=signal.SIGTERM, seconds=100):
        """Returns the exit code, once none of its processes is left."""
        family = descendants(self.process.pid)
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        wait_until_gone(family)
        return code

    def kill(self):
        """Ends everything that is left of it."""
        if self.process is None:
            return
        family = [self.process.pid, *descendants(self.process.pid)] if self.process.poll() is None else []
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until_gone(family)
        self.log.close()
        self.process = None

    def processes(self):
        """The numbers of all processes below the supervisor, by their names."""
        found = {}
        for pid in descendants(self.process.pid):
            with contextlib.suppress(OSError):
                found.setdefault(pathlib.Path(f"/proc/{pid}/comm").read_text().strip(), []).append(pid)
        return found

    def connect(self, timeout=30):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def send(self, method, path, body=None, headers=None, timeout=30):
        """Returns (status, headers, bytes)."""
        with contextlib.closing(self.connect(timeout)) as connection:
            if body is not None and not isinstance(body, bytes):
                body, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def get(self, path, **options):
        status, _, body = self.send("GET", path, **options)
        return status, body

    def json(self, method, path, body=None, status=200, **options):
        code, _, answer = self.send(method, path, body, **options)
        assert code == status, (method, path, code, answer[:500])
        return json.loads(answer)

    def submit(self, **fields):
        """Returns the id of a job."""
        return self.json("POST", "/v1/jobs", {**TEXT, **fields}, status=202)["id"]

    def job(self, id):
        return self.json("GET", f"/v1/jobs/{id}")

    def wait_for(self, id, seconds=120):
        """Returns the job when it has ended; a server that is away for a moment is asked again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                job = self.job(id)
                if job["state"] in ENDED:
                    return job
            time.sleep(0.02)
        raise AssertionError(f"job {id} has not ended after {seconds} s: {self.log_text()[-2000:]}")

    def result(self, job, index=0):
        status, body = self.get(job["results"][index]["url"])
        assert status == 200, (status, body[:300])
        return body

    def metric(self, name):
        """The value of the first series of that name, or 0."""
        text = self.get("/metrics")[1].decode()
        found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0


def memory_bytes(pid):
    """The memory of a process by the names of the kernel: Rss, Pss (with its part of what it shares), Anonymous, ..."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) * 1024 for name, value in (line.split(":", 1) for line in lines)}


def resident_bytes(pid):
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def open_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
