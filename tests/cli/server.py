"""Starts `tessera serve` and talks to it as a client does, with the standard library alone."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

TEXT = {"prompt": "a red circle on a white background"}
ENDED = ("succeeded", "failed", "cancelled", "expired")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def descendants(pid):
    """The processes below `pid` that have not ended, the nearest first."""
    found = []
    for each in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = each.read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if state not in "ZX":
                found.append((int(head.split()[0]), int(parent)))
    family, generation = [], {pid}
    while generation := {child for child, parent in found if parent in generation}:
        family += sorted(generation)
    return family


class Server:
    """A server of its own, with its folder beside it. `flags` are those of the command line."""

    def __init__(self, program, folder, *flags, env=None, port=None):
        self.program, self.folder, self.flags, self.env = program, pathlib.Path(folder), flags, env
        self.port = port or free_port()
        self.process = None

    def start(self, wait=60):
        self.log = open(self.folder / "server.log", "ab")
        variables = {**os.environ, "XDG_CACHE_HOME": os.fspath(self.folder / "cache"), **(self.env or {})}
        self.process = subprocess.Popen([self.program, "serve", "--listen", f"127.0.0.1:{self.port}", "--folder",
                                         os.fspath(self.folder / "state"), *map(str, self.flags)], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log, env=variables, start_new_session=True)
        if wait:
            self.wait_until_ready(wait)
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self):
        return self.start() if self.process is None else self

    def __exit__(self, *_):
        self.kill()

    def log_text(self):
        return (self.folder / "server.log").read_text(errors="replace")

    def wait_until_ready(self, seconds=60):
        """Returns how long it took."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            assert self.process.poll() is None, f"the server has ended: {self.log_text()}"
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/ready", timeout=2)[0] == 200:
                    return time.monotonic() - begin
            time.sleep(0.02)
        raise AssertionError(f"not ready after {seconds} s: {self.log_text()[-2000:]}")

    def stop(self, seconds=60):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self):
        """Ends everything that is left of it."""
        if self.process is None:
            return
        family = [self.process.pid, *descendants(self.process.pid)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()
        self.process = None

    # What runs, by what it is: as the supervisor's children say of themselves in their names.
    def processes(self):
        return descendants(self.process.pid)

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


def resident_bytes(pid):
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def open_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
