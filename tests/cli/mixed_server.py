#!/usr/bin/env python3
"""Puts a server under a mixed load for a while: pictures of every kind, cancels, clients that go away or read slowly, broken requests.
Memory and descriptors must stay flat, nothing may be left behind, and nothing may end with status 500.
mixed_server.py PROGRAM [--seconds 3600]
"""
import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import tempfile
import threading
import time

from server import TEXT, Server, descendants, open_descriptors, resident_bytes

FLAT = 1.05  # the last quarter's memory against that of the second


def broken_bodies(choose):
    """Requests that no server should take, as bytes of a connection."""
    path = choose.choice(["/v1/jobs", "/v1/images/generations", "/v1/videos", "/sdapi/v1/txt2img", "/v1/images/edits"])
    body = choose.choice([b"", b"{", b"[]", b'{"prompt": 1}', b'{"prompt": "x", "height": 1e99}', b"\xff\xfe", b"[" * 5000, b'{"prompt": "x", "seed": -7}',
                          b'{"prompt": "' + b"x" * 100_000 + b'"}', b"--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nx"])
    kind = choose.choice([b"application/json", b"multipart/form-data; boundary=b", b"text/plain"])
    length = choose.choice([len(body), len(body), len(body) + 100, 10**12])
    return b"POST " + path.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: " + kind + b"\r\nContent-Length: " + \
        str(length).encode() + b"\r\n\r\n" + body


class Client(threading.Thread):
    def __init__(self, server, seed, end):
        super().__init__(daemon=True)
        self.server, self.choose, self.end, self.faults, self.count = server, random.Random(seed), end, [], 0

    def run(self):
        acts = [self.picture, self.picture, self.awaited, self.cancel, self.leave, self.watch, self.broken, self.sdapi]
        while time.monotonic() < self.end:
            act = self.choose.choice(acts)
            try:
                act()
            except Exception as error:  # whatever it is, it is a fault of the server or of this test
                self.faults.append(f"{act.__name__}: {error!r}")
            self.count += 1

    def fields(self):
        return {**TEXT, "seed": self.choose.randrange(100), "num_inference_steps": self.choose.choice([2, 5, 20])}

    def picture(self):
        job = self.server.wait_for(self.server.submit(**self.fields()))
        assert job["state"] == "succeeded", job
        assert self.server.result(job).startswith(b"\x89PNG")
        if self.choose.random() < 0.5:
            self.server.json("DELETE", f"/v1/jobs/{job['id']}")

    def awaited(self):
        answer = self.server.json("POST", "/v1/images/generations",
                                  {**self.fields(), "n": self.choose.choice([1, 2]), "response_format": "b64_json"}, timeout=120)
        assert answer["data"][0]["b64_json"], answer

    def sdapi(self):
        answer = self.server.json("POST", "/sdapi/v1/txt2img", {**TEXT, "steps": 3, "width": 64, "height": 64}, timeout=120)
        assert answer["images"], answer

    def cancel(self):
        id = self.server.submit(**{**self.fields(), "num_inference_steps": 200})
        time.sleep(self.choose.uniform(0, 0.5))
        self.server.json("DELETE", f"/v1/jobs/{id}")
        job = self.server.wait_for(id)
        assert job["state"] in ("cancelled", "succeeded"), job

    def leave(self):
        body = json.dumps({**self.fields(), "num_inference_steps": 200}).encode()
        with socket.create_connection(("127.0.0.1", self.server.port)) as connection:
            connection.sendall(b"POST /v1/images/generations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
                               + str(len(body)).encode() + b"\r\n\r\n" + body)
            time.sleep(self.choose.uniform(0, 0.3))

    def watch(self):
        """Follows a job with previews, and reads slowly."""
        id = self.server.submit(**self.fields())
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as connection:
            connection.sendall(f"GET /v1/jobs/{id}/events?previews=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            for _ in range(self.choose.randrange(40)):
                if not connection.recv(64):
                    break
                time.sleep(0.005)

    def broken(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=5) as connection:
            connection.sendall(broken_bodies(self.choose))
            with contextlib.suppress(TimeoutError, ConnectionError):
                head = connection.recv(4096)
                assert b" 500 " not in head.split(b"\r\n")[0], head


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[])
    args = parser.parse_args()
    shared, faults = set(os.listdir("/dev/shm")), []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
        os.environ["TMPDIR"] = temporary
        with Server(args.program, folder, *args.flags) as server:
            end = time.monotonic() + args.seconds
            clients = [Client(server, i, end) for i in range(6)]
            for client in clients:
                client.start()
            samples = []
            while time.monotonic() < end:
                time.sleep(max(0.2, args.seconds / 400))
                with contextlib.suppress(OSError):
                    family = [server.process.pid, *descendants(server.process.pid)]
                    samples.append(([resident_bytes(pid) for pid in family], [open_descriptors(pid) for pid in family]))
            for client in clients:
                client.join(180)
                faults += client.faults
            quarter = len(samples) // 4
            for name, which in (("memory", 0), ("descriptors", 1)):
                early = statistics.median(sum(each[which]) for each in samples[quarter:2 * quarter])
                late = statistics.median(sum(each[which]) for each in samples[3 * quarter:])
                print(f"{name}: {early:.0f} in the second quarter, {late:.0f} in the last ({late / early:.3f})")
                if late > early * FLAT:
                    faults.append(f"{name} grow: {early:.0f}, {late:.0f}")
            print(f"{sum(client.count for client in clients)} acts, {server.metric('tessera_steps_total'):.0f} steps")
            code = server.stop()
            if code != 0:
                faults.append(f"SIGTERM ends it with {code}")
        if left := os.listdir(temporary):
            faults.append(f"left in $TMPDIR: {left}")
    if left := set(os.listdir("/dev/shm")) - shared:
        faults.append(f"left in /dev/shm: {left}")
    print(f"{len(faults)} faults", *faults[:40], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
