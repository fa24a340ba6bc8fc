"""Test of tools/ci/check_layers.py: what each rule refuses, in a small tree."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools.ci import check_layers  # noqa: E402


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

    def test_public_headers_stand_for_themselves(self):
        self.assertEqual(self.problems({"include/tessera/a.h": '#include <ATen/core/Tensor.h>\n#include "tessera/api.h"\n',
                                        "src/core/a.h": '#include "tessera/api.h"\n'}), [])
        refused = "a public header includes libtorch's tensors and other public headers alone"
        self.assertEqual(self.problems({"include/tessera/a.h": '#include "core/error.h"\n#include <fmt/format.h>\n'}),
                         [f"include/tessera/a.h:{number}: {refused}" for number in (1, 2)])

    def test_only_operations_include_kernels(self):
        kernel = '#include "kernels/gemm.h"\n'
        self.assertEqual(self.problems({"src/ops/a.cc": kernel, "src/kernels/a.cc": kernel}), [])
        self.assertEqual(self.problems({"src/models/a.cc": kernel}), ["src/models/a.cc:1: models/ may not include kernels/"])
        self.assertEqual(self.problems({"src/kernels/a.cc": '#include "ops/operation.h"\n'}),
                         ["src/kernels/a.cc:1: kernels/ may not include ops/"])
        self.assertEqual(self.problems({"src/kernels/a.cc": '#include "weights/scope.h"\n'}),
                         ["src/kernels/a.cc:1: kernels/ may not include weights/"])

    def test_folders_in_folders_include_what_is_declared(self):
        inner = '#include "plan/hardware/mapping.h"\n'
        self.assertEqual(self.problems({"src/plan/costs.cc": inner, "src/cli/a.cc": inner, "src/plan/hardware/a.cc": inner}), [])
        self.assertEqual(self.problems({"src/plan/hardware/a.cc": '#include "plan/machine.h"\n#include "core/error.h"\n'}), [])

    def test_folders_in_folders_include_nothing_else_of_the_outer_one(self):
        self.assertEqual(self.problems({"src/plan/hardware/a.cc": '#include "plan/simulation.h"\n'}),
                         ["src/plan/hardware/a.cc:1: plan/hardware/ may not include plan/simulation.h: see NESTED"])
        self.assertEqual(self.problems({"src/core/a/b.cc": '#include "core/error.h"\n'}),
                         ["src/core/a/b.cc:1: core/a/ may not include core/error.h: see NESTED"])
        self.assertEqual(self.problems({"src/plan/hardware/a.cc": '#include "plan/tables/table.h"\n'}),
                         ["src/plan/hardware/a.cc:1: plan/hardware/ may not include plan/tables/table.h: see NESTED"])

    def test_folders_in_folders_have_declared_readers(self):
        inner = '#include "plan/hardware/mapping.h"\n'
        self.assertEqual(self.problems({"src/plan/machine.cc": inner}),  # which the folder includes itself
                         ["src/plan/machine.cc:1: plan/ may not include plan/hardware/mapping.h: see NESTED"])
        self.assertEqual(self.problems({"src/job/a.cc": inner}),
                         ["src/job/a.cc:1: job/ may not include plan/hardware/mapping.h: see NESTED"])
        self.assertEqual(self.problems({"src/media/a.cc": '#include "media/libav/libav.h"\n'}),
                         ["src/media/a.cc:1: media/ may not include media/libav/libav.h: see NESTED"])

    def test_models_in_folders_know_no_ranks(self):
        self.assertEqual(self.problems({"src/models/dit/dit.cc": "int norm_num_groups;\nint numRanks;\nf(FieldGroup::kVideo, \"of \\\"groups\\\"\");\n"}),
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

    def test_scripts_in_folders_have_few_lines(self):
        self.assertEqual(self.problems({"tools/ci/short.py": "pass\n" * 500}), [])
        self.assertEqual(self.problems({"tools/ci/long.py": "pass\n" * 501}),
                         ["tools/ci/long.py: 501 lines, at most 500: one noun a file"])


if __name__ == "__main__":
    unittest.main()
