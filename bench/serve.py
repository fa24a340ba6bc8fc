#!/usr/bin/env python3
"""What a server adds to a request: the same pictures through `tessera serve` and in one run of `tessera generate`, alternately.

A client sends one request after the other and waits for each. The time of `generate` is that of its report, from the first step to the
last picture; what both take for the pictures themselves is subtracted request by request.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from server import Server  # noqa: E402

PROMPT = "a red circle on a white background"


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=str(ROOT / "build" / "tessera"))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, \
            Server(args.program, folder, "--threads", "1", env={"OMP_NUM_THREADS": "1"}) as server:
        connection = server.connect(120)
        overhead, whole = [], []
        for i in range(args.requests + 20):
            body = json.dumps({"prompt": PROMPT, "seed": i, "n": 1, "num_inference_steps": args.steps,
                               "response_format": "b64_json"}).encode()
            begin = time.perf_counter()
            connection.request("POST", "/v1/images/generations", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            document = json.loads(answer.read())
            took = time.perf_counter() - begin
            assert answer.status == 200, document
            if i >= 20:  # the first ones load what stays
                whole.append(took)
                overhead.append(took - document["inference_time_s"])
    print(f"{args.requests} requests of {args.steps} steps: {statistics.median(whole) * 1e3:.2f} ms each (median), of which the server adds "
          f"{statistics.median(overhead) * 1e3:.3f} ms (median), {percentile(overhead, .99) * 1e3:.3f} ms (99 %)")


if __name__ == "__main__":
    main()
