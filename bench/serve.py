#!/usr/bin/env python3
"""What a server adds to the pictures that it makes.

First the overhead of requests that a client sends one after the other: the time until the answer is read, less `total` of its header
Server-Timing, which is what `tessera generate` would take for the picture: how long the ranks worked on the run, by their own clocks, and how
long the file was made. What is left are HTTP, JSON, Base64, the queue, and all that processes and threads hand over to each other.

Then what it costs a run to be watched: jobs that nobody follows take turns with jobs whose events a client follows, without previews and with
`previews=1`, at the cadence that a server has by default. What is compared is the time of a run without its prompts, its decoding and its
files: of the steps, and of what happens between them.

Then what several clients get at once: rounds of requests by one client that sends one after the other take turns with rounds in which all
clients send theirs at once, so that the server may batch them.
"""
import argparse
import contextlib
import json
import pathlib
import re
import socket
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from server import Server  # noqa: E402

PROMPT = "a red circle on a white background"
WATCHED = {"alone": None, "events": "", "events and previews": "?previews=1"}


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def body_of(seed, steps):
    return json.dumps({"prompt": PROMPT, "seed": seed, "n": 1, "num_inference_steps": steps, "response_format": "b64_json"}).encode()


def send(connection, seed, steps):
    connection.request("POST", "/v1/images/generations", body_of(seed, steps), {"Content-Type": "application/json"})


def read(connection):
    """The seconds of the parts of the run."""
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    return parts_of(answer.headers["Server-Timing"])


def parts_of(text):
    return {name: float(ms) / 1e3 for name, ms in re.findall(r"(\w+);dur=([\d.]+)", text)}


def measure_requests(server, count, steps):
    overhead, whole = [], []
    # What http.client itself does takes half a millisecond.
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for i in range(count + 20):
        body = body_of(i, steps)
        request = b"POST /v1/images/generations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + \
            f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        begin = time.perf_counter()
        connection.sendall(request)
        answer = connection.recv(1 << 20)
        while len(answer) < (end := answer.index(b"\r\n\r\n") + 4 + int(re.search(rb"Content-Length: (\d+)", answer)[1])):
            answer += connection.recv(end - len(answer))
        took = time.perf_counter() - begin
        assert answer.startswith(b"HTTP/1.1 200"), answer
        parts = parts_of(answer.split(b"\r\n\r\n")[0].decode())
        if i >= 20:  # the first ones load what stays
            whole.append(took)
            overhead.append(took - parts["total"])
    print(f"{count} requests of {steps} steps: {statistics.median(whole) * 1e3:.2f} ms each (median), of which beside the picture itself "
          f"{statistics.median(overhead) * 1e3:.3f} ms (median), {percentile(overhead, .99) * 1e3:.3f} ms (99 %)", flush=True)


class Watcher(threading.Thread):
    """Follows a job to its end, and counts its events by name."""

    def __init__(self, server, id, query):
        super().__init__()
        self.server, self.path, self.counts = server, f"/v1/jobs/{id}/events{query}", {}
        self.start()

    def run(self):
        with contextlib.closing(self.server.connect(120)) as connection:
            connection.request("GET", self.path, headers={"Accept": "text/event-stream"})
            for line in connection.getresponse():
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                    self.counts[name] = self.counts.get(name, 0) + 1


def measure_watchers(server, rounds, steps):
    connection, other = server.connect(120), server.connect(120)
    times, previews = {name: [] for name in WATCHED}, 0
    for i in range(rounds + 1):
        for name in list(WATCHED) if i % 2 else reversed(WATCHED):
            send(connection, i, steps)
            jobs = []
            while not jobs:  # the others ask for the id too, so that all are alike
                other.request("GET", "/v1/jobs?state=queued,running")
                jobs = json.loads(other.getresponse().read())["data"]
            watcher = None if WATCHED[name] is None else Watcher(server, jobs[0]["id"], WATCHED[name])
            parts = read(connection)
            if watcher:
                watcher.join()
                assert watcher.counts["step"] > steps / 2, watcher.counts
                previews += watcher.counts.get("preview", 0)
            if i > 0:
                times[name].append(parts["total"] - parts["load"] - parts["encode"] - parts["decode"] - parts["write"])
    alone = statistics.median(times["alone"])
    print(f"{rounds} runs each of {steps} steps, {alone * 1e3:.1f} ms alone (median):", flush=True)
    for name in list(WATCHED)[1:]:
        pairs = sorted(watched / own - 1 for watched, own in zip(times[name], times["alone"]))
        spread = [pairs[int(len(pairs) * share)] for share in (.25, .75)]
        print(f"  with {name}: {(statistics.median(times[name]) / alone - 1) * 100:+.2f} % (medians), "
              f"{statistics.median(pairs) * 100:+.2f} % (median of pairs; half of them {spread[0] * 100:+.2f} to {spread[1] * 100:+.2f} %)")
    print(f"  {previews / (rounds + 1):.1f} previews of a run", flush=True)


def measure_clients(server, clients, rounds, steps):
    connections = [server.connect(300) for _ in range(clients)]

    def one_after_the_other(seeds):
        for seed in seeds:
            send(connections[0], seed, steps)
            read(connections[0])

    def at_once(seeds):
        for connection, seed in zip(connections, seeds):
            send(connection, seed, steps)
        for connection in connections:
            read(connection)

    times = {one_after_the_other: [], at_once: []}
    for i in range(rounds + 1):
        for way in list(times) if i % 2 else reversed(times):
            begin = time.perf_counter()
            way(range(i * clients, (i + 1) * clients))
            if i > 0:  # the first round measures what batches cost
                times[way].append(time.perf_counter() - begin)
    ratios = sorted(alone / together for alone, together in zip(*times.values()))
    print(f"{rounds} rounds of {clients} requests of {steps} steps, {statistics.median(times[one_after_the_other]):.2f} s one after the other "
          f"(median): by {clients} clients {statistics.median(ratios):.2f} times as many a second (median of pairs; {ratios[0]:.2f} to "
          f"{ratios[-1]:.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "tessera"))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=30, help="of a run that nobody follows, and of those that are followed")
    parser.add_argument("--watched-steps", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8, help="clients at once, or 0")
    parser.add_argument("--client-rounds", type=int, default=10)
    parser.add_argument("--client-steps", type=int, default=20)
    parser.add_argument("options", nargs="*", help="of the server, behind --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, \
            Server(args.program, folder, *(args.options or ["--threads", "1"])) as server:
        if args.requests:
            measure_requests(server, args.requests, args.steps)
        if args.rounds:
            measure_watchers(server, args.rounds, args.watched_steps)
        if args.clients:
            measure_clients(server, args.clients, args.client_rounds, args.client_steps)


if __name__ == "__main__":
    main()
