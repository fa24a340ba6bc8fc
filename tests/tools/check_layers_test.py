"""Test of tools/check_layers.py: what each rule refuses, in a small tree."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_layers  # noqa: E402


class CheckLayersTest(unittest.TestCase):
    def problems(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"src/models/plain.cc": "int x;\n", **files}.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check_layers.check(pathlib.Path(folder))[0]

    def test_includes_point_down(self):
        self.assertEqual(self.problems({"src/engine/a.cc": '#include "comm/group.h"\n'}), [])
        self.assertEqual(self.problems({"src/comm/a.cc": '#include "engine/engine.h"\n'}),
                         ["src/comm/a.cc:1: comm/ may not include engine/"])
        self.assertEqual(self.problems({"src/core/a/b.cc": '#include "cli/run.h"\n'}), ["src/core/a/b.cc:1: core/ may not include cli/"])

    def test_models_in_folders_know_no_ranks(self):
        self.assertEqual(self.problems({"src/models/dit/dit.cc": "int norm_num_groups;\nint numRanks;\n"}),
                         ["src/models/dit/dit.cc:2: a model does not know of a 'ranks'"])

    def test_functions_fit_on_a_screen(self):
        body = "  f();\n" * 58
        method = "    f();\n" * 58
        long, member = "int f(\n    int x) {\n" + body + "}\n", "class A {\n  int f() {\n" + method + "    f();\n  }\n};\n"
        self.assertEqual(self.problems({"src/core/a.cc": "int f() {\n" + body + "}\n"}), [])
        self.assertEqual(self.problems({"src/core/a.cc": "\n" + long}), ["src/core/a.cc:2: f() has 61 lines, at most 60"])
        self.assertEqual(self.problems({"src/core/a.h": member}), ["src/core/a.h:2: f() has 61 lines, at most 60"])
        table = "constexpr int kTable[] = {\n" + "    g(1),\n" * 70 + "};\n"
        self.assertEqual(self.problems({"src/core/a.cc": table + "class B {\n" + "  int f();\n" * 70 + "};\n"}), [])


if __name__ == "__main__":
    unittest.main()
