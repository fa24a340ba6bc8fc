#!/usr/bin/env python3
"""How long requests take at a server whose client sends one after the other, beside the time for which it says that their jobs ran.

The difference is what comes before the run and after the encoding: HTTP, JSON, Base64 and the hand-overs to them. The messages to and from the
ranks and the encoding of the picture count as the job's. Both times are whole milliseconds in the answer, so that the median over many
requests says more than single ones.
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
            Server(args.program, folder, "--threads", "1") as server:
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
    print(f"{args.requests} requests of {args.steps} steps: {statistics.median(whole) * 1e3:.2f} ms each (median), beside the jobs "
          f"{statistics.median(overhead) * 1e3:.3f} ms (median), {percentile(overhead, .99) * 1e3:.3f} ms (99 %)")


if __name__ == "__main__":
    main()
