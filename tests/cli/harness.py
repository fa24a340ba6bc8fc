"""Runs the program in an empty folder per test, and checks its results and the files that it leaves behind."""
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import traceback

import forks
from files import read_latents

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "tests" / "golden" / "tiny-pixart"
GOLDEN = MODEL / "golden"
SMALL = ["--height", "32", "--width", "48", "--no-resolution-binning", "--num-inference-steps", "2"]  # the fastest image

TESTS = []
SLOWEST = 5  # tests whose times are printed


class Skipped(Exception):
    """Says why this machine cannot run a test."""


def test(function=None, *, alone=False):
    """Registers a test. Tests run in parallel, except those that need the machine `alone` because their results depend on the
    speed of the ranks or on the amount of free memory."""
    def register(function):
        function.alone = alone
        TESTS.append(function)
        return function
    return register(function) if function else register


@dataclasses.dataclass
class Outcome:
    code: int
    out: str
    err: str


class Box:
    """An empty folder for one test, in which the program runs. What it caches lies beside the folder."""

    def __init__(self, program, folder, server=None):
        self.program, self.folder, self.server = program, folder, server
        self.cache = folder.parent / "cache"

    def run(self, *arguments, env=None, limits=None, timeout=120, stdin=None):
        def prepare():
            for kind, value in (limits or {}).items():
                if kind == resource.RLIMIT_AS and "ASAN_OPTIONS" in os.environ:
                    continue  # its shadow memory takes terabytes of addresses; max_allocation_size_mb is the limit instead
                resource.setrlimit(kind, value if isinstance(value, tuple) else (value, value))

        # A value of None in `env` removes a variable.
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": os.fspath(self.cache), **(env or {})}
        if self.server and not env and not limits:  # libraries read variables and limits when they are loaded
            code, out, err = forks.run(self.server, list(map(os.fspath, arguments)), self.folder, variables, stdin, timeout)
            return Outcome(code, out.decode(), err.decode(errors="replace"))
        done = subprocess.run([self.program, *map(os.fspath, arguments)], cwd=self.folder, capture_output=True, input=stdin,
                              env={name: value for name, value in variables.items() if value is not None}, timeout=timeout,
                              preexec_fn=prepare)
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))

    def generate(self, *arguments, **options):
        """Runs the tiny model; the run must succeed."""
        outcome = self.run("generate", "--model", MODEL, "--dtype", "fp32", *arguments, **options)
        assert outcome.code == 0, outcome
        return outcome

    def latents(self, *arguments, **options):
        """Returns the (shape, numbers) of such a run."""
        path = self.folder / "latents.safetensors"
        assert not path.exists(), path
        self.generate(*arguments, "--output-type", "latent", "-o", path, **options)
        return read_latents(path)

    def report(self, name="run.json"):
        """Returns the JSON that a run has written, and removes the file."""
        path = self.folder / name
        report = json.loads(path.read_text())
        path.unlink()
        return report

    def refuse(self, code, needle, *arguments, **options):
        """Checks that a run fails with one line that contains `needle`, and leaves nothing behind."""
        before = self.files()
        outcome = self.run(*arguments, **options)
        assert outcome.code == code, outcome
        lines = outcome.err.splitlines()
        # A run that fails late has already printed progress lines.
        assert lines and lines[-1].startswith("tessera: ["), outcome
        assert needle in lines[-1], (needle, outcome)
        assert sum(line.startswith("tessera:") for line in lines) == 1, outcome
        assert "frame #" not in outcome.err and "terminate" not in outcome.err, outcome
        assert outcome.out == "", outcome
        assert self.files() == before, (before, self.files())
        return outcome

    def files(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    def copy_model(self):
        target = self.folder / "model"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(MODEL, target, ignore=shutil.ignore_patterns("golden"))
        return target


@dataclasses.dataclass
class Verdict:
    name: str
    seconds: float
    failure: str = ""
    skipped: str = ""


def words_of(options):
    """The options of a layout, as a plan names them, in the words of the command line."""
    words = []
    for name, value in options.items():
        name = name.replace("_", "-")
        words += [f"--{name}" if value else f"--no-{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
    return words


def run_one(program, name, server):
    function = next(function for function in TESTS if function.__name__ == name)
    verdict, start = Verdict(name, 0), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        inside = pathlib.Path(folder, "box")
        inside.mkdir()
        try:
            function(Box(program, inside, server))
        except Skipped as reason:
            verdict.skipped = str(reason)
        except (AssertionError, OSError, subprocess.SubprocessError, KeyError, ValueError):
            verdict.failure = traceback.format_exc()
    verdict.seconds = time.monotonic() - start
    return verdict


def selected(names):
    """Returns the tests whose names contain one of `names` (all if empty), without those of modules named with a dash. Of these
    PART=1/2 in the environment selects every second one, PART=2/2 the others. `--alone` among the names selects those that need
    the machine alone, `--together` the others."""
    part, parts = map(int, os.environ.get("PART", "1/1").split("/"))
    kinds = [name == "--alone" for name in names if name.startswith("--")] or [True, False]
    left_out = [name[1:] for name in names if name.startswith("-")]
    wanted = [name for name in names if not name.startswith("-")]
    chosen = [function for function in TESTS if function.__module__ not in left_out
              and (not wanted or any(name in function.__name__ for name in wanted))]
    return [function for function in chosen[part - 1::parts] if function.alone in kinds]


def end_quietly_at_ctrl_c():
    """Keeps a worker from printing a traceback at Ctrl-C. The programs under test do not inherit the handler."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def verdicts(program, tests, workers, server):
    """Yields each verdict as soon as it is known: first those of tests that run in parallel in worker processes, then the others."""
    together = [function.__name__ for function in tests if not function.alone]
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), end_quietly_at_ctrl_c) as pool:
        try:
            for future in concurrent.futures.as_completed([pool.submit(run_one, program, name, server) for name in together]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    for function in tests:
        if function.alone:
            yield run_one(program, function.__name__, server)


def run_all(program, names):
    # One more than cores, since many tests wait for ranks that wait.
    workers = int(os.environ.get("TESSERA_TEST_WORKERS", len(os.sched_getaffinity(0)) + 1))
    failed, skipped, times = [], [], []
    with forks.serving(program) as server:
        for verdict in verdicts(program, selected(names), workers, server):
            times.append((verdict.seconds, verdict.name))
            if verdict.failure:
                failed.append(verdict.name)
                print(f"FAILED {verdict.name}\n{verdict.failure}", flush=True)
                if os.environ.get("TESSERA_TESTS_FAIL_FAST"):
                    break
            if verdict.skipped:
                skipped.append(verdict.name)
                print(f"SKIPPED {verdict.name}: {verdict.skipped}", flush=True)
    passed = len(times) - len(failed) - len(skipped)
    print("slowest:", ", ".join(f"{name} {seconds:.1f} s" for seconds, name in sorted(times, reverse=True)[:SLOWEST]))
    print(f"{passed} passed, {len(failed)} failed" + (f", {len(skipped)} skipped: {', '.join(skipped)}" if skipped else ""))
    if skipped and os.environ.get("TESSERA_TESTS_MAY_SKIP") == "none":
        print("TESSERA_TESTS_MAY_SKIP=none forbids skipped tests")
        return 1
    return 1 if failed or not passed else 0
