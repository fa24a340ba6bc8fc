#!/usr/bin/env python3
"""Checks which small changes of behaviour (mutants) the tests catch.

Each mutant of tests/cases/mutants/ is applied alone in a separate working tree (build/mutants/), where only the targets that the
tests need are built, without joining sources, because a mutant changes one. The tests that the mutant names run first, then all
of `make test`. A mutant is caught if a test fails or hangs; one that passes everything has survived and needs a test. A mutant is
located by its exact text, anywhere under src/ if its file has moved. If that text does not occur exactly once, the mutant is
reported as stale, never as caught.

A mutant consists of a line `name: what it changes`; a line with its file and the tests that run first (unit:FILTER of gtest,
capped:FILTER of the same under a cap of the instruction set, cli:PART of a test's name); lines `- ` with the original text; lines
`+ ` with its replacement; and an empty line."""
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
LIMIT = 3600  # seconds for a build or for all tests; tests that take longer count as failed
LIMIT_OF_SELECTED = 300  # seconds for the tests that run first, which should take a few


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    says: str
    file: str
    first: tuple  # ("unit", filter), ("capped", filter) or ("cli", name)
    old: str
    new: str

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
            sides = {mark: "\n".join(line[2:] for line in lines if line.startswith(mark)) for mark in "-+"}
            assert sides["-"] and all(line[:2] in ("- ", "+ ") for line in lines), f"{path}: {name}"
            mutants.append(Mutant(name, says, file, tuple(tuple(word.split(":", 1)) for word in first), sides["-"], sides["+"]))
    names = [mutant.name for mutant in mutants]
    assert len(set(names)) == len(names), "two mutants have one name"
    return mutants


class Tree:
    """A checkout of the current commit with its own build folder."""

    def __init__(self, folder):
        self.folder, self.build = folder, folder / "build-mutants"
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
        """Returns whether a command succeeded in time, and the end of its output."""
        try:
            done = self.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
        except subprocess.TimeoutExpired:
            return False, "time limit exceeded"
        return done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]

    def make(self, *targets):
        return self.passes(["tools/build.sh", "mutants", *targets])

    def suite(self, kind, selection=None):
        limit = LIMIT_OF_SELECTED if selection else LIMIT
        tests = str(self.build / "tests" / "tessera_tests")
        if kind == "unit":
            return self.passes([tests, "--gtest_brief=1", *([f"--gtest_filter={selection}"] if selection else [])], limit)
        if kind == "capped":
            return self.passes(["tools/test_capped.sh", tests, *([selection] if selection else [])], limit)
        return self.passes(["tests/cli/run.sh", str(self.build / "tessera")] + ([selection] if selection else []), limit)


TARGETS = {"unit": "tessera_tests", "capped": "tessera_tests", "cli": "tessera_forks"}


def judge(tree, mutant, only_first):
    """Returns (verdict, the test that caught it or a reason)."""
    path, reason = mutant.place(tree.folder)
    if not path:
        return "stale", reason
    whole = path.read_text()
    path.write_text(whole.replace(mutant.old, mutant.new))
    try:
        for kind, selection in [*mutant.first, *([] if only_first else [("unit", None), ("capped", None), ("cli", None)])]:
            built, text = tree.make(TARGETS[kind])
            if not built:
                return "broken", "it does not build: " + next((line for line in text.splitlines() if "error:" in line), text[-200:])
            if not tree.suite(kind, selection)[0]:
                return "caught", f"{kind} {selection or 'all'}"
        return ("not caught by the first", "") if only_first else ("survived", mutant.says)
    finally:
        path.write_text(whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="mutants whose name or file holds NAME (may be repeated)")
    parser.add_argument("--sample", type=int, metavar="N", help="a random sample of N mutants, drawn with --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", metavar="I/N", help="the I-th of N parts, from 0")
    parser.add_argument("--first", action="store_true", help="run only the tests that each mutant names, which is quick while writing one")
    parser.add_argument("--check", action="store_true", help="only report stale mutants")
    parser.add_argument("--tree", type=pathlib.Path, default=ROOT / "build" / "mutants", help="folder of the scratch checkout")
    parser.add_argument("--keep", action="store_true", help="keep the scratch checkout, so that the next run builds less")
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
        print(f"{len(mutants) - len(stale)} of {len(mutants)} mutants are located")
        return 1 if stale else 0

    tree = Tree(options.tree.resolve())
    tree_builds, text = tree.make("tessera_forks", "tessera_tests")
    if not tree_builds:
        sys.exit(f"mutants: the tree does not build without mutants\n{text}")
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
