#!/usr/bin/env python3
"""Holds thousands of queued jobs and open streams of events on a server, and measures the memory of the process that serves them and
how soon /health answers meanwhile. load_server.py PROGRAM [--jobs 10000] [--streams 10000]
"""
import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from server import TEXT, Server, descendants, memory_bytes, open_descriptors, resident_bytes

MOST_MEMORY = 150e6  # bytes
MOST_HEALTH = 5e-3  # seconds, of 99 in 100


def front_of(server):
    """The process that holds the listening socket's connections: the one with the most descriptors."""
    return max(descendants(server.process.pid), key=open_descriptors)


async def open_stream(port, id):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/jobs/{id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    return reader, writer


async def streams(port, ids, count):
    """Opens `count` streams, says so on stdout, and holds them until stdin ends."""
    held = []
    for begin in range(0, count, 200):
        held += await asyncio.gather(*(open_stream(port, ids[i % len(ids)]) for i in range(begin, min(begin + 200, count))))
    print("open", len(held), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for _, writer in held:
        writer.close()


def memory_text(pid):
    memory = {name: f"{value / 1e6:.1f} MB" for name, value in memory_bytes(pid).items()}
    return f"{memory['Rss']} resident ({memory['Pss']} with its share of what several processes have, {memory['Anonymous']} anonymous)"


def health_times(server, seconds):
    times, end = [], time.monotonic() + seconds
    connection = server.connect()
    while time.monotonic() < end:
        begin = time.perf_counter()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        times.append(time.perf_counter() - begin)
        time.sleep(0.005)
    connection.close()
    return sorted(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--held", nargs=2, help=argparse.SUPPRESS)  # PORT IDS: the process of the clients
    args = parser.parse_args()
    if args.held:
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        asyncio.run(streams(int(args.held[0]), args.held[1].split(","), args.streams))
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as folder, \
            Server(args.program, folder, "--max-queue", args.jobs + 10, "--max-steps", 1000) as server:
        front = front_of(server)
        print(f"alone: {memory_text(front)}")
        # One long job in front, so that the others wait.
        server.submit(num_inference_steps=900, num_images_per_prompt=8)
        begin, connection, ids = time.monotonic(), server.connect(), []
        for i in range(args.jobs):
            connection.request("POST", "/v1/jobs", json.dumps({**TEXT, "seed": i}).encode(), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 202, (answer.status, body)
            ids.append(json.loads(body)["id"])
        took = time.monotonic() - begin
        print(f"{args.jobs} jobs accepted, {took / args.jobs * 1e3:.2f} ms each; {memory_text(front)}")
        clients = subprocess.Popen([sys.executable, os.path.abspath(__file__), args.program, "--streams", str(args.streams), "--held",
                                    str(server.port), ",".join(ids[-200:])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = clients.stdout.readline()
        assert line.split() == ["open", str(args.streams)], line
        times = health_times(server, 20)
        memory, text = resident_bytes(front), memory_text(front)
        begin = time.perf_counter()
        assert server.get("/metrics")[0] == 200
        metrics = time.perf_counter() - begin
        p99 = times[int(len(times) * 0.99)]
        print(f"with {args.streams} streams: {text}, /health {statistics.median(times) * 1e3:.2f} ms (median), "
              f"{p99 * 1e3:.2f} ms (99 %), {times[-1] * 1e3:.2f} ms (most), /metrics {metrics * 1e3:.1f} ms")
        # Cancels of jobs that wait.
        cancels = []
        for id in ids[:500]:
            begin = time.perf_counter()
            connection.request("DELETE", f"/v1/jobs/{id}")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            cancels.append(time.perf_counter() - begin)
        cancels.sort()
        print(f"cancelling a queued job: {statistics.median(cancels) * 1e3:.2f} ms (median), {cancels[-1] * 1e3:.2f} ms (most)")
        clients.stdin.close()
        clients.wait()
    too_much = [name for name, is_too_much in (("memory", memory > MOST_MEMORY), ("/health", p99 > MOST_HEALTH)) if is_too_much]
    print("too much:" if too_much else "within the bounds", *too_much)
    return 1 if too_much else 0


if __name__ == "__main__":
    raise SystemExit(main())
