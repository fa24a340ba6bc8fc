#!/usr/bin/env python3
"""Kills or stops a random rank at a random time, many times. Every run must end soon with exit code 4 and one line that
names the rank, and leave nothing behind but images that are whole. `make test` does not include it: soak_ranks.py PROGRAM
[--runs 200]
"""
import argparse
import dataclasses
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time

from files import read_png
from running import children, start

TIMEOUT = 5  # seconds, for ranks that are stopped
BOUND = 10


@dataclasses.dataclass
class Work:
    """Describes a long run and when a rank is killed or stopped: at most `seconds` after the terminal shows `after`."""
    words: list
    after: str
    seconds: float

    def __str__(self):
        return f"{' '.join(self.words)}, after '{self.after}'"


# On a fast machine as many steps of two images end within three seconds.
STEPS = ["--num-images-per-prompt", "12", "--num-inference-steps", "900"]
PICTURES = ["--num-images-per-prompt", "1000", "--num-inference-steps", "1"]
XL = ["--model", "shapes-xl"]
WORKS = [Work([*words, *STEPS], "", 3) for words in (
    ["--use-cfg-parallel"], ["--ulysses-degree", "3"], ["--ring-degree", "2", "--use-cfg-parallel"],
    ["--tensor-parallel-degree", "2"],
    ["--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "4", "--data-parallel-degree", "2"],
    [*XL, "--displaced-patch-degree", "2"], [*XL, "--displaced-patch-degree", "2", "--use-cfg-parallel"])]
WORKS += [Work([*words, *PICTURES], "decode [", 1) for words in (
    ["--use-cfg-parallel"], ["--ulysses-degree", "3"], ["--pipefusion-parallel-degree", "2", "--data-parallel-degree", "2"],
    [*XL, "--displaced-patch-degree", "2"], [*XL, "--ring-degree", "3"])]


def judge_files(folder, out):
    """Returns what is wrong with the files of a run that failed, or None: the first images may be there, each of them whole."""
    names = sorted(path.name for path in pathlib.Path(folder).iterdir())
    if names != [f"out-{i:03}.png" for i in range(len(names))] or not set(out.split()) <= set(names):
        return f"left {names} and printed {out!r}"
    for name in names:
        try:
            read_png(pathlib.Path(folder) / name)
        except Exception as error:  # whatever a cut file makes of the reader
            return f"left {name}, which is not whole: {error!r}"
    return None


def kill_or_stop(program, work, number, delay, choose, folder):
    """Kills or stops a rank; returns a description of what is wrong, or None."""
    run = start(program, folder, "a red circle on a white background", "--timeout", str(TIMEOUT), *work.words)
    run.wait_for(work.after)
    while not children(run.process.pid):
        time.sleep(0.001)
    time.sleep(delay)
    run.ranks = children(run.process.pid)
    if not run.ranks:
        return "the run had already ended"
    victim = choose(len(run.ranks))
    begin = time.monotonic()
    os.kill(run.ranks[victim], number)
    try:
        code, out, lines = run.finish()
    except subprocess.TimeoutExpired:
        run.process.kill()
        return "hangs"
    except AssertionError as error:
        return str(error)
    seconds = time.monotonic() - begin
    if code != 4:
        return f"exit code {code}, {out!r}, {lines}"
    if len(lines) != 1 or f"[rank {victim}]" not in lines[0]:
        return f"printed {lines}, but the victim was {victim}"
    if seconds > BOUND:
        return f"took {seconds:.1f} s"
    return judge_files(folder, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    failed = 0
    for run in range(args.runs):
        work = WORKS[run % len(WORKS)]
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        delay = draw.uniform(0, work.seconds)
        with tempfile.TemporaryDirectory() as folder:
            wrong = kill_or_stop(os.path.abspath(args.program), work, number, delay, draw.randrange, folder)
        if wrong:
            failed += 1
            print(f"run {run}: {work}, {number.name} after {delay:.2f} s: {wrong}", flush=True)
    print(f"{args.runs - failed} of {args.runs} runs ended as they should")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
