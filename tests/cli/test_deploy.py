"""Tests what can be tested without building a container of deploy/Containerfile: that its files exist, that the program takes its words, and
that its second stage has the libraries that the program was linked with."""
import json
import os
import pathlib
import re
import signal
import subprocess

from harness import ROOT
from server import Server

# Instructions with continued lines joined, by name.
TEXT = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (ROOT / "deploy" / "Containerfile").read_text(), flags=re.M))
LINES = [line.split(maxsplit=1) for line in TEXT.splitlines() if line]


def arguments(instruction):
    return [rest for name, rest in LINES if name == instruction]


def test_the_files_that_are_copied_exist():
    copied = [words for words in map(str.split, arguments("COPY")) if not words[0].startswith("--")]
    assert len(copied) > 10
    for *sources, _ in copied:
        for source in sources:
            assert (ROOT / source).exists(), source


def test_the_commands_are_those_of_a_shell():
    for command in arguments("RUN"):
        assert subprocess.run(["bash", "-n", "-c", command]).returncode == 0, command
    for script in re.findall(r"tools/\S+\.sh", " ".join(arguments("RUN"))):
        assert os.access(ROOT / script, os.X_OK), script


def test_the_server_starts_says_that_it_lives_and_ends(program, tmp_path):
    [entry], [health] = arguments("ENTRYPOINT"), arguments("HEALTHCHECK")
    start, check = json.loads(entry), json.loads(health.partition("CMD ")[2])
    address, folder = (start[start.index(name) + 1] for name in ("--listen", "--folder"))
    assert start[:2] == ["tessera", "serve"] and arguments("VOLUME") == [folder] and arguments("EXPOSE") == [address.split(":")[1]]
    words = [os.fspath(tmp_path / "folder") if word == folder else word for word in start[2:]]
    words[words.index("--listen") + 1] = "0.0.0.0:0"
    # Beside what the test gives of both; the last one counts.
    server = Server(program, tmp_path, *words, "--listen-without-keys")
    server.start()
    check = [word.replace(f":{address.split(':')[1]}/", f":{server.port}/") for word in check]
    with server:
        assert subprocess.run(check, capture_output=True).returncode == 0
        assert server.stop(signal.Signals[arguments("STOPSIGNAL")[0]]) == 0
        assert subprocess.run(check, capture_output=True).returncode != 0


def test_without_keys_it_is_not_open_to_everybody(box):
    box.refuse(2, "--api-keys", *json.loads(arguments("ENTRYPOINT")[0])[1:-1], box.folder.parent / "state")


def test_the_second_stage_has_the_libraries_of_the_program(program):
    files = [program, os.path.join(os.path.dirname(program), "lib", "tessera", "codecs.so")]
    needed = subprocess.run(["readelf", "-d", *files], capture_output=True, text=True, check=True).stdout
    found = subprocess.run(["ldd", *files], capture_output=True, text=True, check=True).stdout
    # By name alone, since packages know /lib and /usr/lib as two folders.
    names = {os.path.basename(os.path.realpath(path)) for name, path in re.findall(r"(\S+) => (/\S+)", found)
             if f"[{name}]" in needed and "/torch/lib/" not in path}
    lists = pathlib.Path("/var/lib/dpkg/info").glob("*.list")
    packages = {each.stem.partition(":")[0] for each in lists if names & set(map(os.path.basename, each.read_text().splitlines()))}
    installed = set(arguments("RUN")[-1].partition("apt-get install")[2].partition("&&")[0].split())
    assert len(packages) > 8 and packages <= installed | {"libc6", "libstdc++6", "libgcc-s1"}, packages - installed
