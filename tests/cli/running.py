"""Starts runs whose ranks a test can watch, stop or kill."""
import contextlib
import os
import pathlib
import pty
import re
import resource
import subprocess
import threading

from harness import MODEL


class Run:
    """A run with a terminal, on which it shows each step."""

    def __init__(self, process, terminal):
        self.process, self.terminal, self.shown = process, terminal, ""
        self.ranks = []  # process ids
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        with contextlib.suppress(OSError):  # the other end was closed
            while block := os.read(self.terminal, 4096):
                with self.changed:
                    self.shown += block.decode(errors="replace")
                    self.changed.notify()

    def wait_for(self, text):
        with self.changed:
            while text not in self.shown:
                assert self.process.poll() is None, self.shown
                self.changed.wait(1)

    def finish(self):
        """Returns (exit code, standard output, messages). The limit of 100 s is below the default --timeout of 300 s, so a run
        that ends only by that fails."""
        out, _ = self.process.communicate(timeout=100)
        self.reader.join(100)
        os.close(self.terminal)
        lines = [line for line in re.split(r"[\r\n]+", self.shown.replace("\033[K", "")) if line.startswith("tessera:")]
        assert not any(alive(rank) for rank in self.ranks), "a rank outlived the run"
        return self.process.returncode, out, lines


def alive(process):
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{process}/status").read_text()
    return False


def children(process):
    return [int(word) for word in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def name(process):
    return pathlib.Path(f"/proc/{process}/comm").read_text().strip()


def address_space(process):
    """Returns the size in bytes."""
    return int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def start(program, folder, *words, addresses=resource.RLIM_INFINITY, command="generate"):
    """`addresses` limits the bytes of each process's address space."""
    terminal, follower = pty.openpty()
    process = subprocess.Popen([program, command, *words], cwd=folder, stdout=subprocess.PIPE, stderr=follower, text=True,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (addresses, resource.RLIM_INFINITY)))
    os.close(follower)
    return Run(process, terminal)


def start_long_run(box, *words, steps="900", method=("--use-cfg-parallel",), ranks=2, until="denoise [", images="16",
                   model=MODEL, **limits):
    """Starts a run and returns it when a step is done, or when its terminal shows `until`."""
    run = start(box.program, box.folder, "a cat", "--model", model, "--num-inference-steps", steps, "--num-images-per-prompt", images,
                *method, *words, **limits)
    run.wait_for(until)
    assert len(os.listdir(f"/proc/{run.process.pid}/task")) == 1, "a launcher that has threads must not fork"
    run.ranks = children(run.process.pid)
    assert [name(rank) for rank in run.ranks] == [f"tessera:{rank}" for rank in range(ranks)], run.ranks
    return run
