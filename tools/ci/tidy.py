"""tidy.py SOURCE...: runs clang-tidy on the sources and exits with 1 if it finds anything.

clang-tidy spends most of its time in ATen's headers, so sources that are compiled as one (TESSERA_UNITY) are checked as one: an
eighth of the time. Their texts are joined rather than included, because clang's analyzer follows paths in the main file only.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
# The build is GCC's: clang cannot read its precompiled header, and does not know all of its warnings.
ARGUMENTS = [f"-I{ROOT}", "-Wno-ignored-gch", "-Wno-unknown-warning-option", "-fno-openmp", "-fopenmp-simd"]
JOINED = BUILD / "joined"
INCLUDE = re.compile(r'#include "(.*\.cc)"')
PLACE = re.compile(r"^(\S*/joined/\S+\.cc):(\d+)")


def groups():
    """Yields the compiler's arguments for a file, the file, and the sources in it."""
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["directory"], entry["file"])
        if file.suffix == ".cxx" and file.name.startswith("unity_"):
            yield entry["command"], file, [pathlib.Path(path) for path in INCLUDE.findall(file.read_text())]
        elif file.suffix == ".cc":
            yield entry["command"], file, [file]


def units(wanted):
    """Yields the compiler's arguments, the file in them, and those of its sources that are wanted; each source once."""
    left, first = set(wanted), None
    for command, file, sources in groups():
        first = first or (command, file)
        chosen = [source for source in sources if source in left]
        left -= set(chosen)
        if chosen:
            yield command, file, chosen
    for source in sorted(left):  # of no build, as the fuzzers: with the arguments of another one
        yield *first, [source]


class Joined:
    """The texts of some sources as one file."""

    def __init__(self, number, sources):
        self.path = JOINED / f"{number}.cc"
        self.begins, lines = [], []
        for source in sources:
            self.begins.append((len(lines), source))
            lines += source.read_text().split("\n")
        self.path.write_text("\n".join(lines) + "\n")

    def place(self, match):
        line = int(match[2])
        begin, source = max((each for each in self.begins if each[0] < line), key=lambda each: each[0])
        return f"{source.relative_to(ROOT)}:{line - begin}"


def check(joined):
    done = subprocess.run([ROOT / ".venv/bin/clang-tidy", "--quiet", "-p", JOINED, *(f"--extra-arg={each}" for each in ARGUMENTS), joined.path], capture_output=True, text=True)
    # The count on stderr is of findings in other projects' headers, which are not shown.
    text = done.stdout + "".join(line for line in done.stderr.splitlines(True) if not re.match(r"\d+ warnings? (and \d+ errors? )?generated", line))
    return done.returncode, "\n".join(PLACE.sub(joined.place, line) for line in text.splitlines())


def main():
    sources = [(ROOT / source).resolve() for source in sys.argv[1:]]
    JOINED.mkdir(exist_ok=True)
    files, entries = [], []
    for number, (command, file, chosen) in enumerate(units(sources)):
        files.append(Joined(number, chosen))
        entries.append({"directory": str(BUILD), "file": str(files[-1].path), "command": command.replace(str(file), str(files[-1].path))})
    (JOINED / "compile_commands.json").write_text(json.dumps(entries))
    failed = False
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for code, text in pool.map(check, files):
            failed |= code != 0
            if text.strip():
                print(text, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
