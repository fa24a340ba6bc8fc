"""Checks which small changes of behaviour (mutants) the tests catch.

The current commit is built once in a separate working tree (build/mutants/). For each mutant, only the objects that depend on its
file are compiled again, aside, and linked before the library, so that several mutants can be tried at once. The tests that the
mutant names run first; if they pass, all of `make test` runs, with the machine to itself. A mutant is caught if a test fails; one
that passes everything has survived and needs a test. Tests that exceed their time are a verdict of their own, because a busy
machine can be the reason. The tests that are named have to exist and to pass without a mutant, or nothing is tried.

A mutant is located by its exact text, anywhere under src/ if its file has moved. If that text does not occur exactly once, the
mutant is reported as stale, never as caught.

A mutant consists of a line `name: what it changes`; a line with its file and the tests that run first (unit:FILTER of gtest,
capped:FILTER of the same under a cap of the instruction set, cli:PART of a test's name), with `hangs` behind it if tests that
exceed their time have caught it; lines `- ` with the original text; lines `+ ` with its replacement; and an empty line.

With --release mutants are linked with the release build of this tree instead, which has to be left alone meanwhile. It joins sources,
so that a mutant takes longer to compile, but there is no second build.

With --draw there is no list: lines of src/ are drawn at random, one token of each is changed (tools/ci/draw_mutants.py), and they are
linked with the release build. First the unit tests of the folder in tests/ that
mirrors the file's run, or those of the command line for cli/ and job/, then all unit tests and those of the command line, and for kernels/,
ops/ and core/ those under caps. Whether one that survives changes anything that can be seen is for a person to judge. What the tests of a
survivor printed is kept beside the build."""
import argparse
import concurrent.futures
import dataclasses
import difflib
import functools
import json
import os
import pathlib
import queue
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

from tools.ci.draw_mutants import draw

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "mutants"
ALL_TESTS = (("unit", None), ("capped", None), ("cli", None))
LIMIT = 3600  # seconds for a build or for all tests
LIMIT_OF_SELECTED = 300  # seconds for the tests that run first, which should take a few
OF_LIBRARY = re.compile(r"tessera_(cli|fast|plain)\.dir")
RUNNING = set()  # commands, which do not hear of Ctrl-C themselves


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    says: str
    file: str
    first: tuple  # ("unit", filter), ("capped", filter) or ("cli", name)
    old: str
    new: str
    hangs: bool = False
    rest: tuple = ALL_TESTS  # as `first`, with None for all of a kind

    def place(self, tree):
        """Returns the file that holds the old text exactly once, or None and the reason."""
        given = tree / self.file
        if given.is_file() and given.read_text().count(self.old) == 1:
            return given, ""
        holding = [(path, count) for path in sorted((tree / "src").rglob("*.[hc]*"))
                   if (count := path.read_text().count(self.old))]
        if len(holding) == 1 and holding[0][1] == 1:
            return holding[0][0], ""
        return None, f"its text stands {sum(count for _, count in holding)} times under src/"


def read_mutants():
    mutants = []
    for path in sorted(CASES.glob("*.txt")):
        for block in path.read_text().strip().split("\n\n"):
            title, where, *lines = block.split("\n")
            name, says = title.split(": ", 1)
            file, *first = where.split()
            hangs = first[-1:] == ["hangs"]
            sides = {mark: "\n".join(line[2:] for line in lines if line.startswith(mark)) for mark in "-+"}
            assert sides["-"] and all(line[:2] in ("- ", "+ ") for line in lines), f"{path}: {name}"
            first = tuple(tuple(word.split(":", 1)) for word in (first[:-1] if hangs else first))
            mutants.append(Mutant(name, says, file, first, sides["-"], sides["+"], hangs))
    names = [mutant.name for mutant in mutants]
    assert len(set(names)) == len(names), "two mutants have one name"
    return mutants


def suites_of(folder):
    """Returns gtest's filter for the unit tests of a folder of tests/, or "" if it has none."""
    texts = [path.read_text() for path in sorted((ROOT / "tests" / folder).rglob("*_test.cc"))]
    return ":".join(sorted({f"*{suite}.*" for text in texts for suite in re.findall(r"^TEST(?:_P|_F)?\((\w+),", text, re.M)}))


def drawn_mutants(count, seed):
    """Returns mutants that replace the whole text of a file by one with a token changed."""
    mutants = []
    for number, (path, old, new) in enumerate(draw(ROOT, count, seed)):
        lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
        says = "\n".join([f"{path} {lines[0]}", *(f"    {line}" for line in lines[1:])])
        folder = path.parts[1]
        suites = "" if folder == "job" else suites_of(folder)  # whose tests are those of the command line
        first = (("unit", suites),) if suites else (("cli", None),)
        rest = [test for test in ALL_TESTS if test not in first and (test[0] != "capped" or folder in ("kernels", "ops", "core"))]
        mutants.append(Mutant(f"drawn-{seed}-{number}", says, str(path), first, old, new, rest=tuple(rest)))
    return mutants


def run(words, limit=LIMIT, folder=None, **environment):
    """Returns whether a command succeeded (None if it was out of time), and its output. No process of one that is out of time is
    left."""
    child = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                             env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    RUNNING.add(child)
    try:
        text = child.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[0].decode(errors="replace") + f"\nended after {limit} s"
    finally:
        RUNNING.discard(child)
    ended = f"\nended by signal {-child.returncode}" if child.returncode < 0 else ""
    return child.returncode == 0, text.decode(errors="replace") + ended


def made(words, folder=None):
    """Returns what a command printed that has to succeed."""
    passed, text = run(words, folder=folder)
    if not passed:
        sys.exit(f"mutants: {shlex.join(map(str, words))} failed\n{text[-4000:]}")
    return text


class Build:
    """A tree that is built without a mutant, and the commands that built it."""

    def __init__(self, tree, preset, folder, slots):
        self.tree, self.folder, self.slots = tree, folder, slots
        made(["tools/build.sh", preset, "tessera_forks", "tessera_tests"], tree)
        self.rules = (self.folder / "build.ninja").read_bytes()
        self.compile = {}
        for entry in json.loads((self.folder / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            self.compile[words[words.index("-o") + 1]] = words
        self.link = {target: self.link_command(target) for target in ("tessera", "tessera_forks", "tessera_tests", "tessera_codecs")}
        self.sources = self.read_dependencies()

    @staticmethod
    def apart(tree):
        """Builds the current commit in a working tree of its own."""
        commit = made(["git", "rev-parse", "HEAD"], ROOT).strip()
        if (tree / ".git").exists():
            made(["git", "checkout", "--quiet", "--force", "--detach", commit], tree)
        else:
            tree.parent.mkdir(parents=True, exist_ok=True)
            made(["git", "worktree", "prune"], ROOT)
            made(["git", "worktree", "add", "--quiet", "--force", "--detach", str(tree), commit], ROOT)
        if not (tree / ".venv").exists() and (ROOT / ".venv").exists():
            (tree / ".venv").symlink_to((ROOT / ".venv").resolve())
        return Build(tree, "mutants", tree / "build-mutants", tree)

    @staticmethod
    def of_release():
        """Takes the release build of this tree. Programs find what ships beside the folder of their slot."""
        slots = ROOT / "build" / "drawn"
        slots.mkdir(parents=True, exist_ok=True)
        for name in ("models", "machines"):
            if not (slots / name).exists():
                (slots / name).symlink_to(ROOT / name)
        return Build(ROOT, "release", ROOT / "build", slots)

    def require_unchanged(self):
        """Ends the program if the build was configured anew since it was read: its objects may be others now."""
        if (self.folder / "build.ninja").read_bytes() != self.rules:
            sys.exit(f"mutants: {self.folder / 'build.ninja'} has changed; leave the build alone until all mutants are tried")

    def link_command(self, target):
        command = made(["ninja", "-t", "commands", target], self.folder).splitlines()[-1]
        return shlex.split(command.removeprefix(": && ").removesuffix(" && :"))

    def read_dependencies(self):
        """Returns the sources and headers of each object that a program under test is made of."""
        needed = {word for words in self.link.values() for word in words}
        sources, current = {}, None
        for line in made(["ninja", "-t", "deps"], self.folder).splitlines():
            if line.startswith(" "):
                current.add(os.path.normpath(self.folder / line.strip()))
            elif line:
                current = sources.setdefault(line.split(":")[0], set())
        return {name: paths for name, paths in sources.items()
                if name in self.compile and (name in needed or OF_LIBRARY.search(name))}


class Slot:
    """A folder with the programs of one mutant at a time. It lies where they find the models that ship."""

    def __init__(self, build, number):
        self.build, self.folder = build, build.slots / f"slot-{number}"

    def source(self, name, path, copy):
        """Returns what is compiled in place of an object's source: the copy of the mutant's file, or joined sources with it."""
        given = pathlib.Path(name)
        if given == path:
            return copy
        if "Unity" not in given.parts or str(path) not in given.read_text():
            return given
        joined = self.folder / given.name
        joined.write_text(given.read_text().replace(f'"{path}"', f'"{copy}"'))
        return joined

    def compile(self, mutant, path):
        """Compiles what depends on the mutant's file. Returns the new objects by the names of those that they replace."""
        shutil.rmtree(self.folder, ignore_errors=True)
        copy = self.folder / "src" / path.relative_to(self.build.tree / "src")
        copy.parent.mkdir(parents=True)
        copy.write_text(path.read_text().replace(mutant.old, mutant.new))
        objects = {}
        for name, sources in self.build.sources.items():
            if str(path) not in sources:
                continue
            words = list(self.build.compile[name])
            place = words.index("-c") + 1
            words[place] = str(self.source(words[place], path, copy))
            objects[name] = words[words.index("-o") + 1] = str(self.folder / f"{len(objects)}.o")
            place = words.index("-I" + str(self.build.tree / "src"))
            words[place:place] = ["-iquote", str(self.folder / "src")]
            passed, text = run(words, folder=self.build.folder)
            if not passed:
                raise RuntimeError(next((line for line in text.splitlines() if "error:" in line), text[-200:]))
        return objects

    def link(self, target, objects):
        """Links a target with the new objects. Those of the library stand before it, so that nothing takes the old ones."""
        words = [objects.get(word, word) for word in self.build.link[target]]
        place = words.index("-o")
        result = self.folder / words[place + 1]
        result.parent.mkdir(parents=True, exist_ok=True)
        if target == "tessera_codecs" and words == self.build.link[target]:
            result.symlink_to(self.build.folder / words[place + 1])
            return
        words[place + 1] = str(result)
        if any(word.endswith("libtessera.a") for word in words):
            of_library = [new for old, new in objects.items() if OF_LIBRARY.search(old)]
            words[place:place] = of_library
        passed, text = run(words, folder=self.build.folder)
        if not passed:
            raise RuntimeError(text[-200:])

    def keep(self, mutant, printed):
        """Keeps what the tests of a survivor printed. Returns its end and where it is."""
        path = self.build.slots.parent / f"{self.build.slots.name}-{mutant.name}.log"
        path.write_text(printed)
        return "\n    ".join(["", *printed.splitlines()[-4:], f"all of it: {path}"])

    def fill(self, mutant, path, kinds):
        """Compiles and links what the kinds of tests need."""
        objects = self.compile(mutant, path)
        targets = ["tessera_codecs", *(["tessera", "tessera_forks"] if "cli" in kinds else []),
                   *(["tessera_tests"] if kinds - {"cli"} else [])]
        for target in targets:
            self.link(target, objects)


def run_tests(build, folder, kind, selection=None):
    """Returns whether tests of a kind pass with the programs in the folder (None if out of time), those selected in one process or
    all, and what they print."""
    limit, tests = LIMIT_OF_SELECTED if selection else LIMIT, str(folder / "tests" / "tessera_tests")
    if kind == "cli":
        words = ["tests/cli/run.sh", str(folder / "tessera"), "-x", *(["-n", "0", *named_by(selection)] if selection else [])]
    elif kind == "capped":
        words = ["tools/ci/test_capped.sh", tests, *([selection] if selection else [])]
    elif selection:
        words = [tests, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={selection}"]
    else:
        words = ["tools/ci/run_unit_tests.sh", tests]
    return run(words, limit, build.tree, GTEST_FAIL_FAST="1")


def what_failed(text):
    """Returns the name of the first test that failed, how the tests ended if none has, or ""."""
    failure = re.search(r"^(?:\[  FAILED  \]|FAILED|ERROR) (?:\S+::)?([^\s,]+)", text, re.M)
    crash = re.search(r"^ended by signal (\d+)", text, re.M)
    return failure[1] if failure else f"by a crash ({signal.Signals(int(crash[1])).name})" if crash else ""


def judge(slot, mutant, selected):
    """Returns (verdict, the test that caught it or a reason). Runs the tests that the mutant names, or all."""
    path, reason = mutant.place(slot.build.tree)
    if not path:
        return "stale", reason
    tests = mutant.first if selected else mutant.rest
    try:
        slot.fill(mutant, path, {kind for kind, _ in tests})
    except RuntimeError as error:
        return "did not build", str(error)
    printed = []
    for kind, selection in tests:
        passed, text = run_tests(slot.build, slot.folder, kind, selection)
        printed.append(text)
        if not passed:
            if passed is None and not mutant.hangs:
                return "timed out", mutant.says + slot.keep(mutant, "".join(printed))
            return "caught", f"{kind} {what_failed(text) or (selection or 'all')[:60]}"
    return "not caught by the first" if selected else "survived", mutant.says + slot.keep(mutant, "".join(printed))


@functools.cache
def command_line_tests(*arguments):
    """Returns the tests of the command line that pytest selects with the arguments, each with its file."""
    listed = made(["tests/cli/run.sh", "build/tessera", "--collect-only", *arguments], ROOT)
    return [line for line in listed.splitlines() if "::" in line]


def named_by(selection):
    """Returns the tests of the command line whose names hold a mutant's selection."""
    return [test for test in command_line_tests() if selection in test.split("::")[1]]


def check_named_tests(build, mutants):
    """Ends the program unless all tests that the mutants name exist and pass without a mutant."""
    named = {kind: sorted({selection for mutant in mutants for which, selection in mutant.first if which in kind.split("+")})
             for kind in ("unit+capped", "cli")}
    tests = str(build.folder / "tests" / "tessera_tests")
    missing = [selection for selection in named["unit+capped"]
               if not made([tests, "--gtest_list_tests", f"--gtest_filter={selection}"]).count("\n  ")]
    missing += [selection for selection in named["cli"] if not named_by(selection)]
    if missing:
        sys.exit(f"mutants: no test has these names: {', '.join(missing)}")
    if named["unit+capped"]:
        made(["tools/ci/run_unit_tests.sh", tests, ":".join(named["unit+capped"])], build.tree)
    if named["cli"]:
        tests_of_cli = sorted({test for selection in named["cli"] for test in named_by(selection)})
        made(["tests/cli/run.sh", str(build.folder / "tessera"), *tests_of_cli], build.tree)


class Tally:
    """The verdicts, printed as they come."""

    def __init__(self):
        self.names, self.lock = {}, threading.Lock()

    def add(self, mutant, verdict, by, begin):
        with self.lock:
            self.names.setdefault(verdict, []).append(mutant.name)
            print(f"{verdict:13} {mutant.name}: {by}  [{time.monotonic() - begin:.0f} s]", flush=True)

    def count(self, verdict):
        return len(self.names.get(verdict, []))


def needs_the_machine(mutant):
    """Returns whether a test that runs first needs the machine alone."""
    return any(kind == "cli" and (selection is None or set(named_by(selection)) & set(command_line_tests("-m", "alone")))
               for kind, selection in mutant.first)


def try_all(build, mutants, only_first, cores):
    """Tries the mutants side by side with the tests that they name, then alone those that need or got no verdict so."""
    tally, alone = Tally(), queue.SimpleQueue()
    alone_with_named = [mutant for mutant in mutants if needs_the_machine(mutant)]

    def attempt(slot, mutant, selected):
        begin = time.monotonic()
        verdict, by = judge(slot, mutant, selected)
        build.require_unchanged()
        if verdict == "not caught by the first" and not only_first:
            alone.put(mutant)
        else:
            tally.add(mutant, verdict, by, begin)

    slots = queue.SimpleQueue()
    for number in range(cores):
        slots.put(Slot(build, number))

    def attempt_beside_others(mutant):
        slot = slots.get()
        try:
            attempt(slot, mutant, selected=True)
        finally:
            slots.put(slot)

    pool = concurrent.futures.ThreadPoolExecutor(cores)
    try:
        list(pool.map(attempt_beside_others, [mutant for mutant in mutants if mutant not in alone_with_named]))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    slot = Slot(build, 0)
    for mutant in alone_with_named:
        attempt(slot, mutant, selected=True)
    while not alone.empty():
        attempt(slot, alone.get(), selected=False)
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="mutants whose name or file holds NAME (may be repeated)")
    parser.add_argument("--sample", type=int, metavar="N", help="a random sample of N mutants, drawn with --seed")
    parser.add_argument("--draw", type=int, metavar="N", help="instead of the list, N lines of src/ drawn with --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--release", action="store_true", help="link with the release build of this tree, without a scratch checkout")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="mutants that are tried side by side (the cores)")
    parser.add_argument("--shard", metavar="I/N", help="the I-th of N parts, from 0")
    parser.add_argument("--first", action="store_true", help="run only the tests that each mutant names, which is quick while writing one")
    parser.add_argument("--check", action="store_true", help="only report stale mutants")
    parser.add_argument("--tree", type=pathlib.Path, default=ROOT / "build" / "mutants", help="folder of the scratch checkout")
    parser.add_argument("--keep", action="store_true", help="keep the scratch checkout, so that the next run builds less")
    options = parser.parse_args()
    mutants = [mutant for mutant in (drawn_mutants(options.draw, options.seed) if options.draw else read_mutants())
               if not options.only or any(part in mutant.name or part in mutant.file for part in options.only)]
    if options.sample:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    if options.shard:
        part, parts = map(int, options.shard.split("/"))
        mutants = mutants[part::parts]
    if not mutants:
        parser.error("no mutant has such a name")
    if options.check:
        stale = [(mutant, reason) for mutant in mutants for reason in [mutant.place(ROOT)[1]] if reason]
        for mutant, reason in stale:
            print(f"stale    {mutant.name} ({mutant.file}): {reason}")
        print(f"{len(mutants) - len(stale)} of {len(mutants)} mutants are located")
        return 1 if stale else 0

    in_place = options.release or options.draw
    build = Build.of_release() if in_place else Build.apart(options.tree.resolve())
    if not options.draw:
        check_named_tests(build, mutants)
    tally = try_all(build, mutants, options.first, options.jobs)
    print(", ".join(f"{len(names)} {verdict}" for verdict, names in tally.names.items()))
    if options.draw:
        return 0
    ran = len(mutants) - tally.count("stale")
    if not options.keep and not in_place:
        subprocess.run(["git", "worktree", "remove", "--force", build.tree], cwd=ROOT, check=False)
        shutil.rmtree(build.tree, ignore_errors=True)
    return 0 if ran and tally.count("caught") >= 0.95 * ran else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        for running in list(RUNNING):
            os.killpg(running.pid, signal.SIGKILL)
        os._exit(130)  # without waiting for the threads, whose verdicts are worth nothing now
