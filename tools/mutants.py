#!/usr/bin/env python3
"""Which small changes of behaviour do the tests catch?

Each mutant of tests/cases/mutants/ is applied alone, in a working tree of its own (build/mutants/), which is built there as
far as the tests need. First come the tests that mean it, then all of `make test`. A mutant is caught when a test fails or
does not end; one that passes everything survived, and wants a test. Mutants are found by their exact text, anywhere under
src/ when their file has moved: a text that is not there once is reported as stale, never as caught.

A mutant in those files is: a line `name: what it changes`; a line with its file and the tests that come first (unit:FILTER of
gtest, capped:FILTER of the same under a cap of the instruction set, cli:PART of a name); lines `- ` with what stands there; lines `+ ` with what takes its place; an empty line."""
import argparse
import dataclasses
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "cases" / "mutants"
LIMIT = 1800  # seconds of a build or of all tests: a hang is a catch
LIMIT_OF_SELECTED = 300  # of those that come first, which take seconds


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    says: str
    file: str
    first: tuple  # ("unit", filter), ("capped", filter) or ("cli", name)
    old: str
    new: str

    def place(self, tree):
        """The file that holds the old text once, or why there is none."""
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
            sides = {mark: "\n".join(line[2:] for line in lines if line.startswith(mark)) for mark in "-+"}
            assert sides["-"] and all(line[:2] in ("- ", "+ ") for line in lines), f"{path}: {name}"
            mutants.append(Mutant(name, says, file, tuple(tuple(word.split(":", 1)) for word in first), sides["-"], sides["+"]))
    names = [mutant.name for mutant in mutants]
    assert len(set(names)) == len(names), "two mutants have one name"
    return mutants


class Tree:
    """A copy of the sources, of one commit, with a build folder of its own."""

    def __init__(self, folder):
        self.folder, self.build = folder, folder / "build"
        if (folder / ".git").exists():
            self.run(["git", "checkout", "--quiet", "--force", "--detach", self.commit()], check=True)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
            subprocess.run(["git", "worktree", "add", "--quiet", "--force", "--detach", folder, self.commit()], cwd=ROOT, check=True)
        if not (folder / ".venv").exists() and (ROOT / ".venv").exists():
            (folder / ".venv").symlink_to((ROOT / ".venv").resolve())

    @staticmethod
    def commit():
        return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    def run(self, words, **options):
        return subprocess.run(words, cwd=self.folder, **options)

    def passes(self, words, limit=LIMIT):
        """(whether a command ended well and in time, the end of what it said)"""
        try:
            done = self.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
        except subprocess.TimeoutExpired:
            return False, "no end"
        return done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]

    def make(self, *targets):
        return self.passes(["tools/build.sh", "release", *targets])

    def suite(self, kind, selection=None):
        limit = LIMIT_OF_SELECTED if selection else LIMIT
        tests = str(self.build / "tests" / "tessera_tests")
        if kind == "unit":
            return self.passes([tests, "--gtest_brief=1", *([f"--gtest_filter={selection}"] if selection else [])], limit)
        if kind == "capped":
            return self.passes(["tools/test_capped.sh", tests, *([selection] if selection else [])], limit)
        return self.passes(["tests/cli/run.sh", str(self.build / "tessera")] + ([selection] if selection else []), limit)


TARGETS = {"unit": "tessera_tests", "capped": "tessera_tests", "cli": "tessera"}


def judge(tree, mutant, only_first):
    """(verdict, by what)"""
    path, reason = mutant.place(tree.folder)
    if not path:
        return "stale", reason
    whole = path.read_text()
    path.write_text(whole.replace(mutant.old, mutant.new))
    try:
        for kind, selection in [*mutant.first, *([] if only_first else [("unit", None), ("capped", None), ("cli", None)])]:
            built, text = tree.make(TARGETS[kind])
            if not built:
                return "broken", "it does not build: " + next((line for line in text.splitlines() if "error" in line), text[-200:])
            if not tree.suite(kind, selection)[0]:
                return "caught", f"{kind} {selection or 'all'}"
        return ("not caught by the first", "") if only_first else ("survived", mutant.says)
    finally:
        path.write_text(whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="mutants whose name or file holds NAME (may be repeated)")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn with --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", metavar="I/N", help="the I-th of N parts, from 0")
    parser.add_argument("--first", action="store_true", help="only the tests that mean a mutant: quick, for who writes one")
    parser.add_argument("--check", action="store_true", help="only say which are stale")
    parser.add_argument("--tree", type=pathlib.Path, default=ROOT / "build" / "mutants", help="the scratch copy")
    parser.add_argument("--keep", action="store_true", help="leave it there; the next run builds less")
    options = parser.parse_args()
    mutants = [mutant for mutant in read_mutants()
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
        print(f"{len(mutants) - len(stale)} of {len(mutants)} mutants have their place")
        return 1 if stale else 0

    tree = Tree(options.tree.resolve())
    tree_builds, text = tree.make("tessera", "tessera_tests")
    if not tree_builds:
        sys.exit(f"mutants: the tree does not build without them\n{text}")
    counts = {}
    for mutant in mutants:
        start = time.monotonic()
        verdict, by = judge(tree, mutant, options.first)
        counts.setdefault(verdict, []).append(mutant.name)
        print(f"{verdict:8} {mutant.name}: {by}  [{time.monotonic() - start:.0f} s]", flush=True)
    print(", ".join(f"{len(names)} {verdict}" for verdict, names in counts.items()))
    ran = len(mutants) - len(counts.get("stale", []))
    if not options.keep:
        subprocess.run(["git", "worktree", "remove", "--force", tree.folder], cwd=ROOT, check=False)
        shutil.rmtree(tree.folder, ignore_errors=True)
    return 0 if ran and len(counts.get("caught", [])) >= 0.95 * ran else 1


if __name__ == "__main__":
    sys.exit(main())
