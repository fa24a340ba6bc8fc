"""Tests the installed library: programs outside of the project link it, from a prefix and libtorch alone."""
import os
import pathlib
import subprocess

import pytest

from files import read_png
from harness import MODEL
from test_launchers import free_port, torchrun_variables


def installed(box):
    """The prefix of an installation, and the folder of libtorch."""
    build = pathlib.Path(box.program).parent
    if not (build / "libtessera.so").exists():
        pytest.skip("the shared library is not built")
    prefix = box.folder / "prefix"
    subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, capture_output=True)
    cache = (build / "CMakeCache.txt").read_text().splitlines()
    return prefix, next(line.split("=", 1)[1] for line in cache if line.startswith("CMAKE_PREFIX_PATH:"))


def build_examples(box):
    prefix, torch = installed(box)
    folder = box.folder / "examples"
    for command in (["-S", prefix / "share" / "doc" / "tessera" / "examples", "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix};{torch}",
                     "-DCMAKE_BUILD_TYPE=Debug"], ["--build", folder, "-j2"]):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_examples_link_the_installed_library(box):
    folder = build_examples(box)
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # as the program has it in tests
    session = subprocess.run([folder / "session"], env=alone, cwd=box.folder, capture_output=True, text=True)
    assert session.returncode == 0 and session.stdout.splitlines() == [
        "first: 128 x 128 pixels in 6 steps", "second: 128 x 128 pixels in 6 steps"], session

    # A picture is what the program makes of the same request, on one rank and on two.
    picture = subprocess.run([folder / "picture", "a cat", "one.png", MODEL], env=alone, cwd=box.folder, capture_output=True, text=True)
    assert picture.returncode == 0 and "step 1 of" in picture.stderr, picture
    box.run("generate", "a cat", "--model", MODEL, "--seed", "1", "-o", "program.png")
    expected = read_png(box.folder / "program.png")[:3]  # without the text
    assert read_png(box.folder / "one.png")[:3] == expected
    port = free_port()
    ranks = [subprocess.Popen([folder / "picture", "a cat", "two.png", MODEL], cwd=box.folder, stderr=subprocess.PIPE, text=True,
                              env={**alone, **torchrun_variables(rank, 2, port)}) for rank in (0, 1)]
    for rank in ranks:
        assert rank.wait(60) == 0, rank.stderr.read()
    assert (box.folder / "two.png").exists()

    wrong = subprocess.run([folder / "picture", "a cat", "x.png", "no-such-model"], cwd=box.folder, capture_output=True, text=True)
    assert wrong.returncode == 3 and wrong.stderr.startswith("picture: [no-such-model]") and not (box.folder / "x.png").exists(), wrong

    lost = subprocess.run([folder / "picture", "a cat", "no/such/folder/x.png", MODEL], env=alone, cwd=box.folder, capture_output=True, text=True)
    assert lost.returncode == 2 and lost.stderr.endswith("picture: cannot write no/such/folder/x.png\n"), lost

    # A library that was moved away from what ships finds it by a variable.
    moved = box.folder / "moved"
    moved.mkdir()
    for path in (box.folder / "prefix" / "lib").glob("libtessera.so*"):
        (moved / path.name).write_bytes(path.read_bytes())
    variables = {**alone, "LD_LIBRARY_PATH": str(moved)}
    lost = subprocess.run([folder / "session"], cwd=box.folder, capture_output=True, text=True, env=variables)
    found = subprocess.run([folder / "session"], cwd=box.folder, capture_output=True, text=True,
                           env={**variables, "TESSERA_PREFIX": str(box.folder / "prefix")})
    assert lost.returncode == 3 and "shapes" in lost.stderr, lost
    assert found.returncode == 0 and found.stdout == session.stdout, found
