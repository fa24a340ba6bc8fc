"""Test of tools/ci/draw_mutants.py: which changes lines have, and that a seed draws the same ones again; and of what tools/ci/mutants.py
says of tests that fail."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.ci import draw_mutants, mutants  # noqa: E402


def changed(line):
    """Returns what a line of code can become."""
    (changes,) = list(draw_mutants.lines_with_changes(line)) or [[]]
    return [line[:change.begin] + change.text + line[change.end:] for change in changes]


class DrawMutantsTest(unittest.TestCase):
    def test_one_token_changes(self):
        self.assertEqual(changed("x = a < b && c;"), ["x = a <= b && c;", "x = a < b || c;"])
        self.assertEqual(changed("return 10'000;"), ["return 10001;"])
        self.assertEqual(changed("if (is_empty()) return true;"), ["if (is_empty()) return false;", "if (!(is_empty())) return true;"])
        self.assertEqual(changed("x = std::min(y, 0.5F);"), ["x = std::max(y, 0.5F);"])

    def test_what_is_no_code_stays(self):
        for line in ("// a == b", '#include "a1.h"', 'say("1 + 1");', "std::vector<at::Tensor> a(T&& b);", "a(x1, 0x10);",
                     "static_assert(a == 1);", 'TESSERA_CHECK(a == 1,\n  "{} of {}", a + 1, b);', 'f(R"(a" == "b)");', "c = '+';"):
            self.assertEqual(changed(line), [], line)

    def test_a_seed_draws_the_same_changes(self):
        drawn = draw_mutants.draw(ROOT, 200, 7)
        self.assertEqual(drawn, draw_mutants.draw(ROOT, 200, 7))
        self.assertNotEqual(drawn, draw_mutants.draw(ROOT, 200, 8))
        self.assertEqual(len(drawn), 200)
        places = set()
        for path, old, new in drawn:
            self.assertEqual((ROOT / path).read_text(), old)
            differing = [i for i, (one, other) in enumerate(zip(old.split("\n"), new.split("\n"), strict=True)) if one != other]
            self.assertEqual(len(differing), 1, path)
            places.add((path, differing[0]))
        self.assertEqual(len(places), 200)

    def test_a_negated_condition_keeps_its_texts(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "src" / "a.cc"
            source.parent.mkdir()
            source.write_text('if (name.starts_with(")")) return;\n')
            ((path, _, new),) = draw_mutants.draw(pathlib.Path(folder), 5, 1)
            self.assertEqual((str(path), new), ("src/a.cc", 'if (!(name.starts_with(")"))) return;\n'))

    def test_a_crash_is_told_from_a_test_that_fails(self):
        failed = "[  FAILED  ] Suite.Test, where GetParam() = 1 (2 ms)\n"
        self.assertEqual(mutants.what_failed(failed + "ended by signal 11"), "Suite.Test")
        self.assertEqual(mutants.what_failed("FAILED test_trace.py::test_a_report_of_traces - x\n"), "test_a_report_of_traces")
        for words in (["sh", "-c", "kill -SEGV $$"], ["tools/ci/side_by_side.sh", "echo first", "kill -SEGV $$"]):
            passed, text = mutants.run(words, folder=ROOT)
            self.assertIs(passed, False)
            self.assertEqual(mutants.what_failed(text), "by a crash (SIGSEGV)")
        self.assertEqual(mutants.run(["sh", "-c", "exit 3"]), (False, ""))
        self.assertEqual(mutants.what_failed("exit 3"), "")

    def test_a_build_that_is_configured_anew_ends_the_trial(self):
        with tempfile.TemporaryDirectory() as folder:
            rules = pathlib.Path(folder) / "build.ninja"
            rules.write_text("rule a")
            build = object.__new__(mutants.Build)
            build.folder, build.rules = pathlib.Path(folder), rules.read_bytes()
            build.require_unchanged()
            rules.write_text("rule b")
            self.assertRaisesRegex(SystemExit, "build.ninja has changed", build.require_unchanged)


if __name__ == "__main__":
    unittest.main()
