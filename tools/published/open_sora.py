"""What the published analysis of Open-Sora counts: FLOPs of its graphs, from a trace, and the operators and bytes of a pair of blocks of
STDiT3-XL, from the JSON of `tessera analyze hardware`. docs/published.md says what is wrong with it."""
import math

from tools.published import tx8

# STDiT3-XL.
HIDDEN, HEADS, PAIRS, TEXT_TOKENS = 1152, 16, 28, 300
# Operations of an element.
NORM, MODULATE, GATE, ACTIVATION = 4, 2, 2, 7

# The graphs count one for each number that an addition, subtraction, multiplication, division, reciprocal square root, negation or
# exponential writes, and nothing for sums, maxima, tanh, powers and conversions. By operation of a trace: what is counted for each
# element of the output, and for each row of it. Rotary positions are not among it: without them the published totals come out to
# their digits, with them 2 to 3 % higher.
COUNTS = {
    # x - mean, its square, times the reciprocal root, times 1 + scale, plus shift; two means, epsilon, root
    "modulated_layer_norm": (5, 4),
    "group_norm": (5, 0),
    # the square, times the reciprocal root, times the weight; the mean, epsilon, root
    "rms_norm": (3, 3),
    "gated_add": (2, 0),
    # 0.5 x (1 + tanh(c (x + d x x x)))
    "gelu_tanh": (8, 0),
    "gelu": (4, 0),
    "gated_gelu": (5, 0),
    # x / (1 + exp(-c x))
    "silu": (4, 0),
    "quick_gelu": (5, 0),
    **{f"aten::{name}": (1, 0) for name in ("add", "sub", "mul", "div", "neg", "exp", "rsqrt")}}


def is_attention(event):
    return "attention" in event["operation"]


def counted_flops(event, texts=1):
    """(products, elementwise) of an operation of a trace. `texts` is the number of samples for cross-attention that multiplies the
    queries of each with the keys of all and masks those of others afterwards, as these graphs do."""
    shape, inputs = event["output"]["shape"], event["inputs"]
    elements, width = math.prod(shape), max(shape[-1], 1) if shape else 1
    if is_attention(event):
        # Two products of as many FLOPs, 2 x depth for each score. Queries are scaled; from each score the maximum of its row is
        # subtracted, the exponential taken, and divided by the sum.
        scores = event["flops"] // (4 * max(inputs[0]["shape"][-1], 1))
        return texts * event["flops"], texts * 3 * scores + elements
    has_bias = len(inputs) > 2
    if event["operation"] == "linear":
        return event["flops"], elements if has_bias else 0
    if "conv" in event["operation"]:
        return 0, elements if has_bias else 0
    of_element, of_row = COUNTS.get(event["operation"].removesuffix("_"), (0, 0)) if shape else (0, 0)
    return 0, elements * of_element + elements // width * of_row


def is_cross_attention(event):
    return is_attention(event) and event.get("role", "").endswith(".cross_attn.attention")


def texts_of(events, steady):
    """The samples of a step, each of which may have a cross-attention of its own in a block."""
    spatial = [event for event in events if "operation" in event and event["step"] == steady and is_cross_attention(event)
               and event["role"].startswith("spatial_blocks.")]
    return sum(event["inputs"][0]["shape"][0] for event in spatial if event["role"] == spatial[0]["role"]) or 1


def count_trace(trace, rank):
    """Sums of {"products", "elementwise"} by phase, and of a step: the analysis has in each step what a run does once before its
    steps. The steady step of a trace stands for those that were not traced."""
    events = next(each for each in trace["ranks"] if each["rank"] == rank)["events"]
    steady = max(trace["traced_steps"] - 2, 0)
    texts = texts_of(events, steady)
    names = ("products", "elementwise")
    step, run = dict.fromkeys(names, 0), {}
    for event in events:
        if "operation" not in event:
            continue
        in_step = event["phase"] == "denoise" and event["step"] in (-1, steady)
        times = trace["steps"] - trace["traced_steps"] + 1 if in_step else 1
        of_phase = run.setdefault(event["phase"], dict.fromkeys(names, 0))
        for name, number in zip(names, counted_flops(event, texts if is_cross_attention(event) else 1)):
            of_phase[name] += times * number
            step[name] += number if in_step else 0
    return {"step": step, "run": run}


def count_rows(rows):
    """The same of the rows that tessera analyze ops prints of one step, or of a program. Elementwise work is what the rows say."""
    def first_size(row):
        return int(row["inputs"].partition("x")[0])

    def calls(suffix):
        return [row for row in rows if is_attention(row) and row["role"] == f"spatial_blocks.*.{suffix}.attention"]

    pairs = sum(row["count"] for row in calls("attn"))
    texts = sum(row["count"] * first_size(row) for row in calls("cross_attn")) // max(pairs, 1) or 1
    sums = {"products": 0, "elementwise": 0}
    for row in rows:
        times = texts if row["role"].endswith(".cross_attn.attention") else 1
        if is_attention(row) or row["operation"] == "linear":
            sums["products"] += times * row["flops"]
        elif "conv" not in row["operation"] or "convert" in row["operation"]:
            sums["elementwise"] += times * row["flops"]
    return {"step": sums, "run": {"denoise": sums}}


class Sizes:
    """The sizes of a pair of blocks on the busiest device, from the JSON of `tessera analyze hardware` without a trace. 5/17 of the
    frames, rounded down, are taken for the latent frames."""

    def __init__(self, hardware):
        self.frames, self.of_frame = hardware["num_frames"] * 5 // 17, hardware["tokens_per_frame"]
        self.batch, self.dies = hardware["batch"], hardware["dies"]

    def parts(self):
        """(samples, queries, keys) within frames, along them, and for the text."""
        frames, positions = tx8.divide_up(self.frames, self.dies), tx8.divide_up(self.of_frame, self.dies)
        return ((self.batch * frames, self.of_frame, self.of_frame), (self.batch * positions, self.frames, self.frames),
                (self.batch, max(frames * self.of_frame, positions * self.frames), TEXT_TOKENS))


def projections(samples, queries, keys):
    return {"q_proj": tx8.Product(samples * queries, HIDDEN, HIDDEN), "k_proj": tx8.Product(samples * keys, HIDDEN, HIDDEN),
            "v_proj": tx8.Product(samples * keys, HIDDEN, HIDDEN)}


def vector(samples, queries, operations, **more):
    return tx8.Vector(samples * queries, HIDDEN, queries, operations, **more)


def pair(sizes):
    """(name, how often, operator) as listed: without projections of attention's output, norms of queries and keys and the norm before
    the MLP, and with one residual addition for both cross attentions."""
    *selves, cross = sizes.parts()
    for name, part in zip(("spatial", "temporal"), selves):
        yield f"{name}_modulate", 1, vector(*part[:2], MODULATE)
        yield f"{name}_norm", 1, vector(*part[:2], NORM, reduces=True)
        yield from ((f"{name}_{each}", 1, work) for each, work in projections(*part).items())
        yield f"{name}_attention", 1, tx8.Attention(part[0], HEADS, *part[1:], HIDDEN // HEADS, rotary=True)
        yield f"{name}_residual", 1, vector(*part[:2], GATE, weights=HIDDEN)
    samples, queries, keys = cross
    yield from ((f"cross_{each}", 2, work) for each, work in projections(*cross).items())
    yield "cross_attention", 2, tx8.Attention(samples, HEADS, queries, keys, HIDDEN // HEADS)
    yield "cross_residual", 1, vector(samples, queries, GATE, weights=HIDDEN)
    yield "mlp_modulate", 2, vector(samples, queries, MODULATE)
    yield "mlp_up", 2, tx8.Product(samples * queries, HIDDEN, 4 * HIDDEN, ACTIVATION)
    yield "mlp_down", 2, tx8.Product(samples * queries, 4 * HIDDEN, HIDDEN)
    yield "mlp_residual", 2, vector(samples, queries, GATE, weights=HIDDEN)


def volumes(sizes):
    """Bytes that each device sends for a step, with 2 bytes an element, by method. No Ulysses where devices do not form a square, and
    no 2D where they do not form two rows."""
    n, width = sizes.dies, sizes.batch * HIDDEN
    halves = 2 * PAIRS * 2  # in bytes
    tokens, text = sizes.frames * sizes.of_frame * width, TEXT_TOKENS * width
    # Three sums of all tokens, each scattered and gathered.
    found = {"Megatron": halves * 6 * tokens * (n - 1) / n}
    # Queries, keys, values and result of self-attention, queries and result of cross-attention, and its keys and values, in groups of
    # a side of the square, of which each has its share of the tensor.
    side = math.isqrt(n)
    if side * side == n:
        found["Ulysses"] = halves * (6 * tokens + 2 * text) * (side - 1) / n
    # The inputs of five layers of the tokens' width and those of the text's keys and values are gathered along rows; the outputs, 7
    # and 2 widths, are scattered between them. No form is published: this one is ours, and it has the printed digits if the text's
    # tokens are divided among the devices by integers, 18 to each of 16.
    divided = (TEXT_TOKENS - TEXT_TOKENS % n) * width
    if n % 2 == 0:
        found["2D"] = halves * ((5 * tokens + 2 * divided) * (n / 2 - 1) + (7 * tokens + 2 * divided)) / n
    found["Ring"] = halves * 2 * (tokens + text) * (n - 1) / n
    return found


def mapping_json(mapping):
    return {"split": mapping.split, "compute_seconds": mapping.compute, "dram_seconds": mapping.dram, "noc_seconds": mapping.noc,
            "latency_seconds": mapping.latency, "utilization": mapping.utilization, "bound": mapping.bound}


def analyze(hardware, sizes, machine, preset):
    """The operators of a pair of blocks, and the run without those that do not fit."""
    rows, without, beyond, pair_seconds = [], [], [], 0
    for name, count, work in pair(sizes):
        row = {"name": name, "shape": work.shape(), "count": count}
        try:
            mapping = tx8.map_operator(work, machine, preset)
        except tx8.DoesNotFit as obstacle:
            row["obstacle"] = str(obstacle)
            without.append(name)
        else:
            row |= mapping_json(mapping)
            pair_seconds += count * mapping.latency
            beyond += [name] if mapping.is_beyond_bound else []
        rows.append(row)
    total = (pair_seconds + hardware["exchange_seconds"]) * hardware["pairs"] * hardware["num_inference_steps"]
    return {"latent_frames": sizes.frames, "tokens_per_frame": sizes.of_frame, "operators": rows, "without": without,
            "beyond_bound": beyond, "pair_seconds": pair_seconds, "total_seconds": total}
