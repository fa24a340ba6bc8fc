#!/usr/bin/env python3
"""Kills (-9) or stops a random process of a server at a random time, many times, under load, while some clients watch previews. No job that
was accepted may be lost, every picture must have the bytes that it has without, and the server must serve again; how soon is printed.
`make test` does not include it: soak_server.py PROGRAM [--kills 200], which the layouts share.
"""
import argparse
import contextlib
import hashlib
import http.client
import os
import pathlib
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time

from server import ENDED, Server, descendants, wait_until_gone

# What each layout loads and computes is small, so that most of the time something is between two steps.
LAYOUTS = {
    "one rank": ["--nproc", "1"],
    "two worlds": ["--nproc", "1", "--worlds", "2"],
    "cfg 2": ["--nproc", "2", "--use-cfg-parallel"],
    "ulysses 3": ["--nproc", "3", "--ulysses-degree", "3"],
    "pipefusion 2": ["--nproc", "2", "--pipefusion-parallel-degree", "2"],
}
AFTER = 2.0  # seconds; beside a start, it should serve again within so many
STOPPED = 2.5  # until a process that is stopped counts as lost


def requests(choose):
    """The requests of clients: sizes, steps and numbers of pictures of every kind."""
    return {"prompt": choose.choice(["a red circle", "a blue square on a white background", "three green triangles"]),
            "seed": choose.randrange(5), "num_inference_steps": choose.choice([5, 20, 60]),
            "num_images_per_prompt": choose.choice([1, 1, 2])}


class Pictures:
    """What `tessera generate` writes for a request: the digests of its files."""

    def __init__(self, program, folder):
        self.program, self.folder, self.known = program, folder, {}

    def of(self, request, flags):
        key = (tuple(sorted(request.items())), tuple(flags))
        if key not in self.known:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                words = [word for name, value in request.items() if name != "prompt"
                         for word in (f"--{name.replace('_', '-')}", str(value))]
                subprocess.run([self.program, "generate", request["prompt"], *words, *flags, "-qo", "out.png"], cwd=folder,
                               check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
                files = sorted(pathlib.Path(folder).glob("*.png"))
                self.known[key] = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        return self.known[key]


class Client(threading.Thread):
    """Sends one job after the other and waits for each, watching some. A job counts from when the server has said that it is accepted."""

    def __init__(self, server, seed, ended):
        super().__init__(daemon=True)
        self.server, self.choose, self.ended = server, random.Random(seed), ended
        self.jobs, self.previews = [], 0  # (id, request); how many it has seen

    def watch(self, id):
        """Reads the events of a job until it has ended or the connection is lost."""
        with contextlib.closing(self.server.connect()) as connection:
            connection.request("GET", f"/v1/jobs/{id}/events?previews=1")
            for line in connection.getresponse():
                self.previews += line.startswith(b"event: preview")

    def run(self):
        while not self.ended.is_set():
            request = requests(self.choose)
            try:
                id = self.server.submit(**request)
            except (OSError, http.client.HTTPException, AssertionError):
                time.sleep(0.05)  # away for a moment, so nothing was accepted
                continue
            self.jobs.append((id, request))
            is_watched = self.choose.random() < 0.5
            while not self.ended.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
                    if is_watched:
                        self.watch(id)
                    if self.server.job(id)["state"] in ENDED:
                        break
                time.sleep(0.02)


def soak(program, name, flags, kills, seed, folder):
    choose = random.Random(seed)
    faults, times, soak_begin = [], [], time.monotonic()
    # The bytes of a picture depend on the number of threads.
    server = Server(program, folder, *flags, "--threads", "1").start()
    server.kill()
    begin = time.monotonic()
    server.start()
    load = time.monotonic() - begin  # from nothing to ready, with the files in memory
    ended = threading.Event()
    clients = [Client(server, seed * 100 + i, ended) for i in range(4)]
    for client in clients:
        client.start()
    for kill in range(kills):
        time.sleep(choose.uniform(0.05, 1.5))
        supervisor = choose.random() < 0.1
        family = descendants(server.process.pid)
        victim = server.process.pid if supervisor else choose.choice(family or [server.process.pid])
        supervisor = victim == server.process.pid
        how = signal.SIGKILL if supervisor or choose.random() < 0.6 else signal.SIGSTOP
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, how)
        begin = time.monotonic()
        try:
            if supervisor:
                server.process.wait()
                wait_until_gone(family)
                server.start(wait=0)
            else:
                time.sleep(0.05 if how == signal.SIGKILL else STOPPED)
            server.wait_until_ready(load + AFTER + 60)
        except AssertionError as error:
            ended.set()
            server.kill()
            return [f"{name}, kill {kill}: {how.name}: {error}"]
        took = time.monotonic() - begin - (STOPPED if how == signal.SIGSTOP else 0)
        times.append(took)
    ended.set()
    for client in clients:
        client.join()
    pictures = Pictures(program, folder)
    attempts = []
    for client in clients:
        for id, request in client.jobs:
            try:
                job = server.wait_for(id)
                attempts.append(job["attempts"])
                if job["state"] != "succeeded":
                    # The third crash is the job's failure, by the rules of the scheduler.
                    if not (job["state"] == "failed" and job["attempts"] >= 3):
                        faults.append(f"{name}: job {id} of {request} has {job['state']}: {job['error']}")
                    continue
                found = [hashlib.sha256(server.result(job, i)).hexdigest() for i in range(len(job["results"]))]
                if found != pictures.of(request, flags[:flags.index("--worlds")] if "--worlds" in flags else flags):
                    faults.append(f"{name}: job {id} of {request}: other bytes than those of generate")
            except (AssertionError, OSError, KeyError) as error:
                faults.append(f"{name}: job {id} of {request} is lost: {error!r}")
    previews = sum(client.previews for client in clients)
    last = Client(server, seed, ended)
    last.watch(server.submit(seed=1, num_inference_steps=250))
    if not last.previews:
        faults.append(f"{name}: no previews after all")
    code = server.stop()
    if code != 0:
        faults.append(f"{name}: SIGTERM ends it with {code}")
    jobs = sum(len(client.jobs) for client in clients)
    print(f"{name}: {len(times)} kills, {(time.monotonic() - soak_begin) / len(times):.1f} s each with all checks, {jobs} jobs, "
          f"{sum(a > 0 for a in attempts)} of them in lost worlds, {previews} previews; start {load:.2f} s, ready again after "
          f"{statistics.median(times):.2f} s (median), {max(times):.2f} s (most), {sum(took > load + AFTER for took in times)} times later than "
          f"a start and {AFTER:g} s; {len(faults)} faults", flush=True)
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    args = parser.parse_args()
    faults = []
    shared = set(os.listdir("/dev/shm"))
    for number, name in enumerate(args.layouts):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
            os.environ["TMPDIR"] = temporary
            faults += soak(args.program, name, LAYOUTS[name], -(-args.kills // len(args.layouts)), args.seed + number, folder)
            if left := os.listdir(temporary):
                faults.append(f"{name}: left in $TMPDIR: {left}")
    if left := set(os.listdir("/dev/shm")) - shared:
        faults.append(f"left in /dev/shm: {left}")
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
