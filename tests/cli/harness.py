"""Runs the program in an empty folder per test, and checks its results and the files that it leaves behind."""
import dataclasses
import json
import os
import pathlib
import resource
import shutil
import subprocess

import forks
from files import read_latents

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "tests" / "golden" / "tiny-pixart"
GOLDEN = MODEL / "golden"
SMALL = ["--height", "32", "--width", "48", "--no-resolution-binning", "--num-inference-steps", "2"]  # the fastest image


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


def words_of(options):
    """The options of a layout, as a plan names them, in the words of the command line."""
    words = []
    for name, value in options.items():
        name = name.replace("_", "-")
        words += [f"--{name}" if value else f"--no-{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
    return words
