"""Runs a program that was built for GPUs on a GPU, and compares its results with those of one rank on the CPU.

    python3 -m tools.gpu.check_cuda build/tessera [--jobs 8] [--only SUBSTRING] [--device cpu]

In fp32, latents may differ by a relative 1e-3 and images must have a PSNR above 50 dB; latents of stale methods are compared with
those of the same ranks on the CPU. Images in bf16 and fp16 are compared with fp32, which finds numbers that are wrong, not ones
that are rounded. Cases on several ranks need several GPUs, or NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment, with which
NCCL 2.30 and newer lets ranks share one; else they are not started. One line is printed for each case as soon as it ends, the
most important cases first. With --device cpu everything runs on the CPU, which tests this script.

Nothing but the standard library is needed, so that the script runs wherever the program does.
"""
import argparse
import array
import collections
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time

from tools.gpu.cuda_cases import CFG, CIRCLE, ROOT, SHAPES, feature_cases, one_rank_cases, several_rank_cases

sys.path.insert(0, str(ROOT / "tests" / "cli"))
from files import psnr, read_png, read_safetensors  # noqa: E402
from harness import Box  # noqa: E402
from running import Run, children  # noqa: E402

LATENT_LIMIT, IMAGE_LIMIT, HALF_LIMIT = 1e-3, 50.0, 20.0  # relative; dB in fp32; dB in 16 bits
TIMEOUT = 60  # seconds of one run
MOST_TIMEOUTS = 4  # after so many, no case on several ranks is started
LAST_LINES = 5  # of the messages of a failed run
LONG = [CIRCLE, "--model", "shapes", "--num-inference-steps", "900", "--num-images-per-prompt", "16", "--dtype", "fp32"]
SIZE_RATIO = 1.25  # of encoded videos, whose frames another case compares

VIDEO_STARTS = {".gif": (0, b"GIF8"), ".mp4": (4, b"ftyp"), ".webm": (0, b"\x1aE\xdf\xa3")}


def floats_of(tensor):
    kind, shape, data = tensor
    assert kind == "F32", kind
    return array.array("f", data)


class Failed(Exception):
    """Says in the first line what was wrong; the others are a run's messages."""


class TimedOut(Failed):
    """A run that was killed because it took too long."""


class Skipped(Exception):
    """Says why this machine cannot run a case."""


def last_lines(text):
    return "\n".join(text.strip().splitlines()[-LAST_LINES:])


class Checks:
    def __init__(self, program, device, folder):
        self.program, self.device, self.folder = str(program), device, folder
        self.lock, self.references, self.count = threading.Lock(), {}, 0

    def new_folder(self):
        with self.lock:
            self.count += 1
            folder = self.folder / str(self.count)
        folder.mkdir(parents=True)
        return folder

    def command(self, words):
        return [self.program, "generate", *map(str, words)]

    def start(self, folder, words):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(self.command(words), cwd=folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="replace", env=environment)

    def run(self, words):
        """Returns the folder that has the results, the exit code, and the messages."""
        folder = self.new_folder()
        process = self.start(folder, words)
        try:
            _, messages = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()  # its ranks end with it
            messages = ""
            with contextlib.suppress(subprocess.TimeoutExpired):  # where the driver does not let a rank end
                _, messages = process.communicate(timeout=TIMEOUT / 6)
            raise TimedOut(f"timeout after {TIMEOUT} s\n{last_lines(messages)}") from None
        return folder, process.returncode, messages

    def generate(self, each, device, dtype, ranks):
        """Returns the folder with the results of a case on the device."""
        suffix = ".safetensors" if each.output == "latents" else each.output
        words = [*each.words, "--seed", "7", "--dtype", dtype, "--device", device, "-o", f"out{suffix}",
                 "--output-type", "latent" if each.output == "latents" else "image", *(each.method if ranks > 1 else ())]
        if ranks == 1:
            words += ["--threads", "1"]
        written = each.written if device == self.device else ()
        for option in written:
            words += [option, f"{option[2:]}.json"]
        folder, code, messages = self.run(words)
        if code != 0:
            raise Failed(f"exit code {code} on {device}\n{last_lines(messages)}")
        strange = [line for line in messages.splitlines() if "Warning" in line or line.startswith("[W")]
        for option in written:
            json.loads((folder / f"{option[2:]}.json").read_text())
        return folder, strange

    def reference(self, each):
        """Computes each reference once; others that need it wait meanwhile."""
        ranks = each.ranks if each.same_ranks else 1
        key = (each.words, each.method if ranks > 1 else (), each.output)
        with self.lock:
            is_first = key not in self.references
            future = self.references.setdefault(key, concurrent.futures.Future())
        if is_first:
            try:
                future.set_result(self.generate(each, "cpu", "fp32", ranks)[0])
            except Exception as error:
                future.set_exception(Failed(f"the reference: {error}"))
        return future.result()

    def judge(self, each):
        """Runs a case, and returns what was measured."""
        expected = self.reference(each)
        folder, strange = self.generate(each, self.device, each.dtype, each.ranks)
        text = compare(each, folder, expected)
        return text + "".join(f"; warns: {line[:100]}" for line in strange[:1])


def compare(each, folder, expected):
    names = sorted(path.name for path in folder.iterdir() if path.suffix != ".json")
    wanted = sorted(path.name for path in expected.iterdir() if path.suffix != ".json")
    if names != wanted:
        raise Failed(f"wrote {names}, not {wanted}")
    if each.output == "latents":
        return compare_latents(folder / names[0], expected / names[0])
    if each.output == ".png":
        return compare_images(each, [folder / name for name in names], [expected / name for name in names])
    own, other = ((place / names[0]).read_bytes() for place in (folder, expected))
    begin, word = VIDEO_STARTS[each.output]
    if own[begin:begin + len(word)] != word:
        raise Failed(f"a file that begins with {own[:12]}")
    if not 1 / SIZE_RATIO < len(own) / len(other) < SIZE_RATIO:
        raise Failed(f"{len(own)} bytes where the CPU has {len(other)}")
    return f"{len(own)} bytes, {len(other)} on the CPU"


def compare_latents(path, expected):
    own, other = (read_safetensors(each)[0]["latents"] for each in (path, expected))
    if own[1] != other[1]:
        raise Failed(f"shape {own[1]}, not {other[1]}")
    a, b = floats_of(own), floats_of(other)
    if not all(map(math.isfinite, a)):
        raise Failed("a number that is not finite")
    error = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))
    text = f"relative error {error:.1e}"
    if not error <= LATENT_LIMIT:
        raise Failed(text)
    return text


def compare_images(each, own, expected):
    if len(own) > 3:  # of a video the first, the middle and the last frame
        own, expected = ([paths[0], paths[len(paths) // 2], paths[-1]] for paths in (own, expected))
    worst = math.inf
    for mine, theirs in zip(own, expected):
        (*size, pixels, _), (*wanted, others, _) = read_png(mine), read_png(theirs)
        if size != wanted:
            raise Failed(f"size {size}, not {wanted}")
        worst = min(worst, psnr(pixels, others))
    text = f"PSNR {worst:.1f} dB" + (f" to fp32, {each.dtype}" if each.dtype != "fp32" else "")
    if not worst > (IMAGE_LIMIT if each.dtype == "fp32" else HALF_LIMIT):
        raise Failed(text)
    return text


# Errors: each function gets the checks, and returns what it saw or throws.

def refused(checks, code, needle, *words):
    folder, got, messages = checks.run([CIRCLE, *SHAPES, *words])
    lines = [line for line in messages.splitlines() if line.startswith("tessera:")]
    # A run that fails late has already printed progress lines.
    if got != code or len(lines) != 1 or not messages.splitlines()[-1].startswith("tessera: [") or needle not in lines[0]:
        raise Failed(f"exit code {got}, {len(lines)} lines\n{last_lines(messages)}")
    if any(folder.iterdir()):
        raise Failed("files were left")
    return lines[0][:120]


def no_such_gpu(checks):
    return refused(checks, 2, "cuda:9", "--device", "cuda:9")


def one_gpu_for_ranks(checks):
    return refused(checks, 2, "is one GPU for several ranks", "--device", "cuda:0", CFG)


def more_ranks_than_gpus(checks):
    if sharing():
        raise Skipped("ranks may share a GPU")
    count = gpus() + 1
    return refused(checks, 2, "needs a GPU of its own", "--device", "cuda", "--data-parallel-degree", count, "--num-images-per-prompt", count)


@contextlib.contextmanager
def long_run(checks, *words):
    """A run of two ranks that has done a step, in an empty folder. It is killed when it takes too long."""
    box = Box(checks.program, checks.new_folder())
    terminal, follower = pty.openpty()
    process = subprocess.Popen([*checks.command(LONG), "--device", checks.device, CFG, *words], cwd=box.folder,
                               stdout=subprocess.PIPE, stderr=follower, text=True)
    os.close(follower)
    run = Run(process, terminal)
    with killed_when_late(process):
        run.wait_for("denoise [")
        run.ranks = children(process.pid)
        yield box, run


@contextlib.contextmanager
def killed_when_late(process):
    timer = threading.Timer(TIMEOUT, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()


def ended(box, run, code, needle):
    since = time.monotonic()
    got, out, lines = run.finish()
    seconds = time.monotonic() - since
    if got != code or out or not any(needle in line for line in lines) or box.files():
        raise Failed(f"exit code {got} after {seconds:.1f} s\n" + "\n".join(lines[-LAST_LINES:] or [run.shown[-500:]]))
    return f"exit code {got} after {seconds:.1f} s: {lines[-1][:100]}"


def killed(checks, victim):
    with long_run(checks) as (box, run):
        os.kill(run.ranks[victim], signal.SIGKILL)
        return ended(box, run, 4, f"[rank {victim}] killed by signal 9")


def stopped(checks):
    with long_run(checks, "--timeout", "4") as (box, run):
        os.kill(run.ranks[1], signal.SIGSTOP)
        return ended(box, run, 4, "[rank 1] was stopped")


def interrupted(checks):
    with long_run(checks) as (box, run):
        for process in (run.process.pid, *run.ranks):  # a terminal sends the signal to all
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)
        return ended(box, run, 130, "stopped; nothing was written")


def interrupted_alone(checks):
    """A run of one rank is one process."""
    folder = checks.new_folder()
    process = checks.start(folder, [*LONG, "--device", checks.device])
    with killed_when_late(process):
        shown = ""
        for line in process.stderr:
            shown += line
            if line.startswith("load denoiser"):
                break
        time.sleep(1)
        since = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, messages = process.communicate()
    if process.returncode != 130 or out or any(folder.iterdir()):
        raise Failed(f"exit code {process.returncode}\n{last_lines(shown + messages)}")
    return f"exit code 130 after {time.monotonic() - since:.1f} s"


ERRORS = [  # name, function, ranks
    ("error: no such GPU", no_such_gpu, 1),
    ("error: one GPU for ranks", one_gpu_for_ranks, 1),
    ("error: more ranks than GPUs", more_ranks_than_gpus, 1),
    ("error: Ctrl-C", interrupted_alone, 1),
    ("error: rank 1 killed", lambda checks: killed(checks, 1), 2),
    ("error: rank 0 killed", lambda checks: killed(checks, 0), 2),
    ("error: rank 1 stopped", stopped, 2),
    ("error: Ctrl-C of two ranks", interrupted, 2),
]
OF_GPUS = (no_such_gpu, one_gpu_for_ranks, more_ranks_than_gpus)


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def sharing():
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


def may_run(device, ranks):
    return ranks == 1 or device == "cpu" or sharing() or gpus() >= ranks


def all_tasks(checks):
    """Yields (name, function without arguments, ranks), the most important first."""
    cases = [*one_rank_cases(), *several_rank_cases(), *feature_cases()]
    first = next(i for i, each in enumerate(cases) if each.ranks > 1)
    tasks = [(each.name, lambda each=each: checks.judge(each), each.ranks) for each in cases]
    errors = [(name, lambda function=function: function(checks), ranks) for name, function, ranks in ERRORS
              if checks.device != "cpu" or function not in OF_GPUS]
    return tasks[:first] + errors + tasks[first:]


class Printer:
    """Runs tasks and prints a line for each that ends."""

    def __init__(self, max_seconds):
        self.lock, self.start, self.max_seconds = threading.Lock(), time.monotonic(), max_seconds
        self.counts, self.failed, self.timeouts = collections.Counter(), [], 0

    def why_not(self, ranks, device):
        if not may_run(device, ranks):
            return "for lack of GPUs"
        if self.max_seconds is not None and time.monotonic() - self.start > self.max_seconds:
            return "for lack of time"
        return f"after {MOST_TIMEOUTS} timeouts" if ranks > 1 and self.timeouts >= MOST_TIMEOUTS else None

    def run(self, name, function, ranks, device):
        if reason := self.why_not(ranks, device):
            with self.lock:
                self.counts[f"not started {reason}"] += 1
            return
        begin = time.monotonic()
        try:
            verdict, text = "ok", function()
        except Skipped as reason:
            verdict, text = "skipped", str(reason)
        except Failed as failure:
            verdict, text = "FAILED", str(failure)
            self.timeouts += isinstance(failure, TimedOut) and ranks > 1
        except Exception as error:  # a wrong case must not end the others, as the GPU may not be there for a second run
            verdict, text = "FAILED", f"{type(error).__name__}: {error}"
        first, *others = text.splitlines() or [""]
        with self.lock:
            self.counts[verdict] += 1
            if verdict == "FAILED":
                self.failed.append(name)
            print(f"{verdict:7} {name:42} {time.monotonic() - begin:5.1f} s  {first}", flush=True)
            for line in others:
                print(f"        | {line}", flush=True)

    def summary(self):
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        text = f"{counts}, in {time.monotonic() - self.start:.0f} s"
        return text + (f"; failed: {', '.join(self.failed)}" if self.failed else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera", type=pathlib.Path, help="the program")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu [cuda]")
    parser.add_argument("--out", type=pathlib.Path, help="keep the results in a new folder inside this one")
    parser.add_argument("--jobs", type=int, default=4, help="runs side by side [4]")
    parser.add_argument("--ranks", choices=["one", "several"], help="only the cases on one rank, or on several")
    parser.add_argument("--only", action="append", default=[], metavar="SUBSTRING",
                        help="cases whose names contain it (may be repeated)")
    parser.add_argument("--without", action="append", default=[], metavar="SUBSTRING", help="not those (may be repeated)")
    parser.add_argument("--max-seconds", type=float, help="start no case after so long")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="run-", dir=options.out or scratch)
        checks = Checks(options.tessera.resolve(), options.device, pathlib.Path(folder).resolve())
        tasks = [(name, function, ranks) for name, function, ranks in all_tasks(checks)
                 if (not options.only or any(part in name for part in options.only))
                 and not any(part in name for part in options.without)
                 and options.ranks in (None, "one" if ranks == 1 else "several")]
        if not tasks:
            parser.error("no case has such a name")
        if options.list:
            print("\n".join(name for name, *_ in tasks))
            return 0
        printer = Printer(options.max_seconds)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda task: printer.run(*task, options.device), tasks))
    print(printer.summary(), flush=True)
    return 1 if printer.failed or not printer.counts["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
