"""Test of tools/published: the formulas of two published documents give the published figures, to the digits that were published or
follow from them. tests/cli/test_published.py tests what needs the program."""
import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.published import comparison, open_sora, tx8  # noqa: E402

MACHINE = json.loads((ROOT / "machines" / "tx8.json").read_text())
TX8 = tx8.Machine(MACHINE, "bf16")
NORM = tx8.Vector(2 * 55200, 1152, 55200, 4, reduces=True)
MODULATION = tx8.Vector(2 * 55200, 1152, 55200, 2)


def sizes(frames, of_frame, dies=1):
    return open_sora.Sizes({"num_frames": frames, "tokens_per_frame": of_frame, "batch": 2, "dies": dies})


class OperatorsTest(unittest.TestCase):
    def expect(self, mapping, split, latency, utilization):
        """Latency in ms, to its digits."""
        digits = len(latency.partition(".")[2])
        self.assertEqual((mapping.split, f"{mapping.latency * 1e3:.{digits}f}", f"{mapping.utilization:.6f}"), (split, latency, utilization))

    def test_vectors_and_attention(self):
        published = [("2760 parts", "2.467122", "0.192596"), ("2484 parts", "2.470451", "0.096354"),
                     ("4 queries x 1 keys", "0.277567", "0.906020")]
        for work, figures in zip(tx8.OPERATORS.values(), published, strict=True):
            self.expect(tx8.map_operator(work, TX8), *figures)
        self.assertEqual(list(tx8.OPERATORS.values())[:2], [NORM, MODULATION])
        self.assertAlmostEqual(NORM.rows * NORM.width * NORM.operations / 2**30, 0.473785, delta=5e-7)

    def test_products(self):
        published = [("256 x 32, input stays", "1.36280", "0.733783"), ("128 x 32, input stays", "1.29915", "0.769734"),
                     ("64 x 64, input stays", "1.42555", "0.701484")]
        for (_, mapping), figures in zip(list(tx8.operators(TX8))[3:], published, strict=True):
            self.expect(mapping, *figures)
        self.expect(tx8.map_operator(tx8.PRODUCT, TX8, preset=True), *published[0])
        # The search looks at those and more.
        self.assertLessEqual(tx8.map_operator(tx8.PRODUCT, TX8).latency, 1.29915e-3 + 5e-9)
        self.assertEqual(tx8.preset_tile(tx8.Product(100, 4608, 1152)), (4, 128))

    def test_what_fits_in_no_way(self):
        # A norm along 60 latent frames of 1840 positions: the sequence has too few parts.
        with self.assertRaisesRegex(tx8.DoesNotFit, "no part of a sequence of 60 fits into the 3072 KiB"):
            tx8.map_operator(tx8.Vector(1840 * 60, 1152, 60, 4, reduces=True), TX8)
        # Blocks of 256 are more than a sixteenth of 920; 15 frames have no block at all.
        attention = tx8.Attention(120, 16, 920, 920, 72)
        tx8.map_operator(attention, TX8)
        for work, preset in ((attention, True), (tx8.Attention(7200, 16, 15, 15, 72), False)):
            with self.assertRaisesRegex(tx8.DoesNotFit, "a sixteenth"):
                tx8.map_operator(work, TX8, preset)

    def test_they_promise_less_than_the_dram_needs(self):
        mapping = tx8.map_operator(MODULATION, TX8)
        self.assertLess(mapping.latency, 2 * MODULATION.rows * MODULATION.width * 2 / (MACHINE["dram_gb_per_s"] * 1e9))


class PairTest(unittest.TestCase):
    def test_latent_frames(self):
        for frames, latent in ((204, 60), (408, 120), (51, 15), (102, 30), (1, 0), (52, 15), (60, 17), (64, 18)):
            self.assertEqual(sizes(frames, 405).frames, latent)

    def test_the_list_lacks_what_it_lacks(self):
        counts = {name: count for name, count, _ in open_sora.pair(sizes(204, 920))}
        self.assertEqual(len(counts), 23)
        for name in ("spatial_o_proj", "temporal_o_proj", "cross_o_proj", "spatial_q_norm", "temporal_k_norm", "temporal_q_rope", "mlp_norm"):
            self.assertNotIn(name, counts)
        self.assertEqual((counts["cross_residual"], counts["cross_q_proj"], counts["mlp_up"]), (1, 2, 2))

    def test_volumes_of_a_step(self):
        """Of 16 devices: 10^9 bytes of Megatron and Ulysses, GiB of 2D, of which no form is published, and of Ring."""
        for video, megatron, ulysses, mesh, ring in (((204, 920), 80.124, 16.054, 34.892, 25.009), ((51, 3600), 78.382, 15.705, 34.135, 24.468)):
            found = open_sora.volumes(sizes(*video, dies=16))
            self.assertEqual([f"{found['Megatron'] / 1e9:.3f}", f"{found['Ulysses'] / 1e9:.3f}", f"{found['2D'] / 2**30:.3f}",
                              f"{found['Ring'] / 2**30:.3f}"], [f"{each:.3f}" for each in (megatron, ulysses, mesh, ring)])
        self.assertEqual(list(open_sora.volumes(sizes(204, 920, dies=5))), ["Megatron", "Ring"])


# What the graphs write down for each element and for each row.
ARITHMETIC = {
    "modulated_layer_norm": ("d = x - mean, d * d, d * r * one_and_scale + shift", "mean = sum / n, r = rsqrt(squares / n + epsilon)"),
    "group_norm": ("d = x - mean, d * d, d * r * weight + bias", ""),
    "rms_norm": ("x * x, x * r * weight", "r = rsqrt(squares / n + epsilon)"),
    "gated_add": ("residual + gate * x", ""), "gelu_tanh": ("0.5 * x * (1 + tanh(c * (x + d * x * x * x)))", ""),
    "gelu": ("0.5 * x * (1 + erf(c * x))", ""), "gated_gelu": ("0.5 * x * (1 + erf(c * x)) * gate", ""),
    "silu": ("x / (1 + exp(-x))", ""), "quick_gelu": ("x / (1 + exp(-c * x))", ""), "aten::add": ("x + y", ""), "aten::add_": ("x + y", ""),
    "aten::sub": ("x - y", ""), "aten::mul": ("x * y", ""), "aten::div": ("x / y", ""), "aten::neg": ("-x", ""), "aten::exp": ("exp(x)", ""),
    "aten::rsqrt": ("rsqrt(x)", ""), "aten::tanh": ("", ""), "aten::sum": ("", "")}


class FlopsTest(unittest.TestCase):
    ROWS, WIDTH = 6, 10

    def operation(self, name, *inputs, flops=0):
        return {"operation": name, "output": {"shape": [2, self.ROWS // 2, self.WIDTH]}, "inputs": [{"shape": shape} for shape in inputs],
                "flops": flops}

    def test_count_the_numbers_that_arithmetic_writes(self):
        def written(formulas):  # a minus sign without an operand before it is a negation
            return len(re.findall("[-+*/]|exp|rsqrt", formulas))

        for name, (of_element, of_row) in ARITHMETIC.items():
            expected = self.ROWS * self.WIDTH * written(of_element) + self.ROWS * written(of_row)
            self.assertEqual(open_sora.counted_flops(self.operation(name)), (0, expected), name)

    def test_products_and_convolutions(self):
        """A product counts as it is, and its bias once for each element; a convolution counts its bias alone."""
        for name, products in (("linear", 123456), ("conv2d", 0)):
            self.assertEqual(open_sora.counted_flops(self.operation(name, [], [], flops=123456)), (products, 0))
            self.assertEqual(open_sora.counted_flops(self.operation(name, [], [], [], flops=123456)), (products, self.ROWS * self.WIDTH))

    def test_attention(self):
        """Each sample multiplies its queries with the texts of both."""
        scores, depth = 24, 5
        event = self.operation("attention", [1, 2, 3, depth], flops=4 * scores * depth)
        self.assertEqual(open_sora.counted_flops(event, 1), (4 * scores * depth, 3 * scores + self.ROWS * self.WIDTH))
        self.assertEqual(open_sora.counted_flops(event, 2), (8 * scores * depth, 6 * scores + self.ROWS * self.WIDTH))


    def test_rows_of_a_program(self):
        """Two samples, of which each attends to a text of its own: a program with the texts of both has those products twice."""
        def row(operation, role, count, flops, inputs="1x2x3x4 2x1x2x5x4"):
            return {"operation": operation, "role": role, "count": count, "flops": flops, "inputs": inputs}

        rows = [row("attention", "spatial_blocks.*.attn.attention", 7, 100), row("attention", "spatial_blocks.*.cross_attn.attention", 14, 10),
                row("exponential", "spatial_blocks.*.cross_attn.attention", 14, 3), row("linear", "spatial_blocks.*.attn.qkv", 7, 1000),
                row("conv2d", "x_embedder.proj", 1, 50000), row("convert", "", 9, 0), row("add", "", 9, 6)]
        expected = {"products": 1000 + 100 + 2 * 10, "elementwise": 6 + 2 * 3}
        self.assertEqual(open_sora.count_rows(rows), {"step": expected, "run": {"denoise": expected}})


class FormulaTest(unittest.TestCase):
    def test_factors_stand_beside_each_other(self):
        for formula, value in (("8 (n-1)/n b s h L", 8 * 7 * 3 * 2), ("3 (F - 2 b)", 3 * 95), ("(2 P + 2 P)/n", 6), ("5 a s^2/h", 20), ("0", 0)):
            self.assertEqual(comparison.value_of(formula, {"n": 8, "b": 4, "s": 2, "h": 1, "L": 6, "F": 103, "P": 11, "a": 1}), value)


if __name__ == "__main__":
    unittest.main()
