"""Runs the program in an empty folder and says what it did and what it left behind."""
import dataclasses
import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import traceback

from files import read_latents

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "tests" / "golden" / "tiny-pixart"
GOLDEN = MODEL / "golden"
SMALL = ["--height", "32", "--width", "48", "--no-resolution-binning", "--num-inference-steps", "2"]  # the quickest picture

TESTS = []


class Skipped(Exception):
    """This machine cannot run a test, for the reason that is given."""


def test(function):
    TESTS.append(function)
    return function


@dataclasses.dataclass
class Outcome:
    code: int
    out: str
    err: str


class Box:
    """A folder of its own for one test."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *arguments, env=None, limits=None, timeout=120):
        def prepare():
            for kind, value in (limits or {}).items():
                if kind == resource.RLIMIT_AS and "ASAN_OPTIONS" in os.environ:
                    continue  # its shadow takes terabytes of addresses; max_allocation_size_mb limits instead
                resource.setrlimit(kind, (value, value))

        # `env` may take a variable away: None.
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        done = subprocess.run([self.program, *map(os.fspath, arguments)], cwd=self.folder, capture_output=True,
                              env={name: value for name, value in variables.items() if value is not None}, timeout=timeout,
                              preexec_fn=prepare)
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))

    def generate(self, *arguments, **options):
        """A run of the tiny model that must succeed."""
        outcome = self.run("generate", "--model", MODEL, "--dtype", "fp32", *arguments, **options)
        assert outcome.code == 0, outcome
        return outcome

    def latents(self, *arguments, **options):
        """(shape, numbers) that such a run gives."""
        path = self.folder / "latents.safetensors"
        assert not path.exists(), path
        self.generate(*arguments, "--output-type", "latent", "-o", path, **options)
        return read_latents(path)

    def report(self, name="run.json"):
        """What a run has written there; the file is removed."""
        path = self.folder / name
        report = json.loads(path.read_text())
        path.unlink()
        return report

    def refuse(self, code, needle, *arguments, **options):
        """A run that must fail with one line that holds `needle`, and leave nothing behind."""
        before = self.files()
        outcome = self.run(*arguments, **options)
        assert outcome.code == code, outcome
        lines = outcome.err.splitlines()
        # A run that got as far as painting has said so before.
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


def run_all(program, names):
    passed, failed, skipped = 0, [], []
    left_out = [name[1:] for name in names if name.startswith("-")]
    names = [name for name in names if not name.startswith("-")]
    for function in TESTS:
        if names and not any(name in function.__name__ for name in names) or function.__module__ in left_out:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                function(Box(program, pathlib.Path(folder)))
                passed += 1
            except Skipped as reason:
                skipped.append(function.__name__)
                print(f"SKIPPED {function.__name__}: {reason}")
            except (AssertionError, OSError, subprocess.SubprocessError, KeyError, ValueError):
                failed.append(function.__name__)
                print(f"FAILED {function.__name__}\n{traceback.format_exc()}")
    print(f"{passed} passed, {len(failed)} failed" + (f", {len(skipped)} skipped: {', '.join(skipped)}" if skipped else ""))
    if skipped and os.environ.get("TESSERA_TESTS_MAY_SKIP") == "none":
        print("nothing may be skipped here")
        return 1
    return 1 if failed or not passed else 0
