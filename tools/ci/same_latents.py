"""Runs the requests of tests/cases/requests.txt with two builds and fails on any bit of the latents that differs.

Use it for changes that claim no effect: `python3 -m tools.ci.same_latents BEFORE AFTER`. Both run on this machine with one thread per
rank, because other processors may select other kernels."""
import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUESTS = ROOT / "tests" / "cases" / "requests.txt"
COMMON = ["--model", "tests/golden/tiny-pixart", "--seed", "7", "--dtype", "fp32", "--threads", "1",
          "--num-inference-steps", "3", "--output-type", "latent", "--quiet"]

sys.path.insert(0, str(ROOT / "tests" / "cli"))
from files import difference, floats, read_safetensors  # noqa: E402


def read_requests():
    """Returns [(name, words)]."""
    requests = []
    for number, line in enumerate(REQUESTS.read_text().splitlines(), 1):
        words = shlex.split(line, comments=True)
        if words:
            requests.append((words[0], words[1:]))
            assert len(words) > 1, f"{REQUESTS}:{number}: a name without a request"
    names = [name for name, _ in requests]
    assert len(set(names)) == len(names), f"{REQUESTS}: a name twice"
    return requests


def generate(program, words, output):
    """Returns (dtype, shape, bytes) of the latents."""
    output.unlink(missing_ok=True)
    done = subprocess.run([program, "generate", *COMMON, *words, "-o", output], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{program} ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
    return read_safetensors(output)[0]["latents"]


def compare(before, after):
    """Describes the difference, or returns None if there is none."""
    if before[:2] != after[:2]:
        return f"{before[0]} {before[1]} became {after[0]} {after[1]}"
    if before[2] == after[2]:
        return None
    changed = sum(before[2][i:i + 4] != after[2][i:i + 4] for i in range(0, len(before[2]), 4))
    count = len(before[2]) // 4
    return f"{changed} of {count} numbers differ, by up to {difference(floats(before), floats(after)):.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path, help="the first program")
    parser.add_argument("after", type=pathlib.Path, help="the second program; the same one shows which requests are not repeatable")
    parser.add_argument("--only", action="append", metavar="NAME", help="requests whose name contains NAME (may be repeated)")
    options = parser.parse_args()
    requests = [(name, words) for name, words in read_requests()
                if not options.only or any(part in name for part in options.only)]
    if not requests:
        parser.error("no request has such a name")
    differing = []
    with tempfile.TemporaryDirectory() as folder:
        for name, words in requests:
            try:
                text = compare(*(generate(program.resolve(), words, pathlib.Path(folder) / "out.safetensors")
                                 for program in (options.before, options.after)))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                text = str(error)
            print(f"{'DIFFERS' if text else 'same   '} {name}{': ' + text if text else ''}", flush=True)
            if text:
                differing.append(name)
    print(f"{len(requests) - len(differing)} same, {len(differing)} differ{': ' + ', '.join(differing) if differing else ''}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
