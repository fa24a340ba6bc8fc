"""The formulas with which the published figures of the machine tx8 were computed, weak points included, so that these figures can be
reproduced; docs/published.md says what is wrong with them. Sizes in MiB are divided by bandwidths in GB/s and the result is taken for
milliseconds; a giga is 2^30 operations, but 10^9 in attention; what is stored is counted once for all turns, and the softmax once for
each block of queries."""
import dataclasses
import math

MEBI, GIBI, GIGA = 2**20, 2**30, 10**9
GEMM_HOPS = 5
FEWEST_BLOCKS = 16  # of a sequence in attention
GRANULE = 16  # what a matrix unit multiplies at once in each dimension
SOFTMAX_OPERATIONS = 5  # of a score
PRESET_SCORES = 256  # rows and columns of the preset block of scores
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


@dataclasses.dataclass(frozen=True)
class Vector:
    """[rows, width] -> [rows, width], in samples of `sequence` rows."""
    rows: int
    width: int
    sequence: int
    operations: float  # of an element
    weights: int = 0  # elements that every row needs
    reduces: bool = False  # a norm, which needs a whole row at once

    def shape(self):
        return f"{self.rows} x {self.width}"


@dataclasses.dataclass(frozen=True)
class Product:
    """[rows, inner] x [inner, columns], with an activation of the output."""
    rows: int
    inner: int
    columns: int
    activation: float = 0  # operations of an element

    def shape(self):
        return f"{self.rows} x {self.inner} x {self.columns}"


@dataclasses.dataclass(frozen=True)
class Attention:
    """Of batch x heads: queries [queries, head_dim] over keys and values [keys, head_dim]."""
    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    rotary: bool = False  # rotary positions are counted here

    def shape(self):
        return f"{self.batch} x {self.heads} of {self.queries} x {self.keys} x {self.head_dim}"


@dataclasses.dataclass(frozen=True)
class Mapping:
    """Times in seconds."""
    split: str
    compute: float
    dram: float
    noc: float
    latency: float

    @property
    def utilization(self):
        return self.compute / self.latency

    @property
    def bound(self):
        most = max(self.compute, self.dram, self.noc)
        return "compute" if most == self.compute else "DRAM" if most == self.dram else "NoC"

    @property
    def is_beyond_bound(self):
        """Whether a resource is busy for longer than the operator takes."""
        return max(self.compute, self.dram, self.noc) > self.latency * (1 + 1e-9)


class DoesNotFit(Exception):
    """No split of an operator fits; the text says why."""


class Machine:
    """A machine file in the units of the formulas: MiB, GB/s, ms, and 10^12 operations/s, which are taken for giga a ms."""

    def __init__(self, file, dtype):
        self.tiles = file["tiles"]
        self.sram = file["sram_kib_per_tile"] / 1024
        self.noc, self.hop = file["noc_gb_per_s_per_tile"], file["hop_latency_us"] / 1e3
        self.dram, self.wait = file["dram_gb_per_s"], file["dram_latency_us"] / 1e3
        self.gemm, self.vector = file["gemm_tflops_per_tile"][dtype], file["vector_tops_per_tile"][dtype]
        self.bytes = DTYPE_BYTES[dtype]

    def mebi(self, elements):
        return elements * self.bytes / MEBI

    def access(self, size):
        """The loads of all tiles queue at the DRAM."""
        return size * self.tiles / self.dram + self.wait

    def obstacle(self, what):
        return DoesNotFit(f"{what} fits into the {self.sram * 1024:.0f} KiB of a tile")


def divisors(number):
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return small + [number // each for each in reversed(small) if each * each != number]


def divide_up(size, by):
    return -(-size // by)


def padded(size):
    return divide_up(size, GRANULE) * GRANULE


def mapping(split, compute, dram, noc, latency):
    """From milliseconds."""
    return Mapping(split, compute / 1e3, dram / 1e3, noc / 1e3, latency / 1e3)


def map_operator(work, machine, preset=False):
    """The best split of an operator; with `preset`, that of the published fixed tiles. Raises DoesNotFit."""
    if isinstance(work, Vector):
        return map_vector(work, machine)
    return (map_product if isinstance(work, Product) else map_attention)(work, machine, preset)


def map_vector(work, machine):
    """Parts are divisors of the sequence, of a norm, or of its elements: of one sample, not of the batch. The highest utilization
    wins."""
    number = work.sequence if work.reduces else work.sequence * work.width
    found = [each for each in (vector_parts(work, parts, machine) for parts in divisors(number)) if each]
    if not found:
        raise machine.obstacle(f"no part of a sequence of {work.sequence}")
    return max(found, key=lambda each: each.utilization)


def vector_parts(work, parts, machine):
    elements = work.rows * work.width
    size, weights = machine.mebi(elements) / parts, machine.mebi(work.weights)
    if size + (1 if parts <= machine.tiles else 2) * weights > machine.sram:
        return None
    turns = divide_up(parts, machine.tiles)
    compute = elements * work.operations / GIBI / parts / machine.vector
    load, weights_load = machine.access(size), machine.access(weights)
    latency = load + weights_load + max((turns - 1) * max(load, compute) + compute, turns * compute) + load
    return mapping(f"{parts} parts", turns * compute, turns * load + weights_load + load, 0, latency)


def preset_tile(work):
    """256 x 32, or 4 x 128 where a product narrows."""
    return (4, 128) if work.columns < work.inner else (256, 32)


def map_product(work, machine, preset=False):
    """Tiles divide the padded rows and columns; the inner dimension is not split. The lowest latency wins."""
    rows, columns = divisors(padded(work.rows)), divisors(padded(work.columns))
    if preset:
        rows, columns = ([each] for each in preset_tile(work))
    found = [product_tile(work, each, other, stays, machine) for each in rows for other in columns for stays in (True, False)]
    if not any(found):
        raise machine.obstacle("no tile")
    return min(filter(None, found), key=lambda each: each.latency)


def product_tile(work, rows, columns, input_stays, machine):
    """One tile of a product, whose input stays or whose weight does while blocks of the other pass round the ring of tiles; None
    where the SRAM is too small."""
    inner, outputs = padded(work.inner), rows * columns
    blocks = [(machine.mebi(rows * inner), divide_up(padded(work.rows), rows)),
              (machine.mebi(columns * inner), divide_up(padded(work.columns), columns))]
    (stays, stay_parts), (passes, pass_parts) = blocks if input_stays else reversed(blocks)
    product = machine.mebi(outputs)
    if stays + 3 * passes + 2 * product > machine.sram:  # the block that stays may have a single buffer
        return None
    compute = 2 * outputs * inner / GIBI / machine.gemm + outputs * work.activation / GIBI / machine.vector
    rounds, groups = divide_up(stay_parts, machine.tiles), divide_up(pass_parts, machine.tiles)
    turn, ring = machine.tiles * compute, (machine.tiles - 1) * (passes / machine.noc + machine.hop * GEMM_HOPS)
    flow = turn if turn >= ring else ring + compute
    stay_load, pass_load, store = machine.access(stays), machine.access(passes), machine.access(product)
    body = (groups - 1) * rounds * max(flow, pass_load) + (rounds - 1) * max(stay_load, flow) + flow
    busy = rounds * groups * turn
    return mapping(f"{rows} x {columns}, {'input' if input_stays else 'weight'} stays", busy,
                   rounds * stay_load + rounds * groups * pass_load + store, rounds * groups * ring,
                   stay_load + pass_load + max(body, busy) + store)


def block_choices(sequence, preset):
    """Blocks along a sequence: divisors of its padded length up to a sixteenth of the sequence."""
    choices = [PRESET_SCORES] if preset else divisors(padded(sequence))
    return [block for block in choices if block <= sequence // FEWEST_BLOCKS]


def map_attention(work, machine, preset=False):
    """The highest utilization wins."""
    found = [each for queries in block_choices(work.queries, preset) for keys in block_choices(work.keys, preset)
             if (each := attention_blocks(work, queries, keys, machine))]
    if not found:
        raise machine.obstacle(f"no block of at most a sixteenth of {work.queries} queries and {work.keys} keys")
    return max(found, key=lambda each: each.utilization)


def attention_blocks(work, queries, keys, machine):
    turned = (queries + keys) * work.head_dim if work.rotary else 0
    output, key_block = machine.mebi(work.batch * queries * work.head_dim), machine.mebi(2 * work.batch * keys * work.head_dim)
    size = output + machine.mebi(turned)
    if size + 3 * key_block + 2 * output > machine.sram:
        return None
    rounds = divide_up(work.heads * (work.queries // queries), machine.tiles)
    turns = divide_up(work.keys // keys, machine.tiles)
    scores = work.batch * queries * keys
    product = 4 * scores * work.head_dim / GIGA / machine.gemm
    softmax = SOFTMAX_OPERATIONS * scores / GIGA / machine.vector
    rotary = work.batch * turned / GIGA / machine.vector
    cycle = rotary + turns * machine.tiles * product + softmax
    load, store = machine.access(size) + machine.access(key_block), machine.access(output)
    latency = load + (cycle - rotary) + (rounds - 1) * max(load, cycle) + store
    return mapping(f"{queries} queries x {keys} keys", rounds * cycle, rounds * load + store, 0, latency)


# Single operators whose figures are published.
OPERATORS = {"RMSNorm [2, 55200, 1152]": Vector(2 * 55200, 1152, 55200, 4, reduces=True),
             "modulation [2, 55200, 1152]": Vector(2 * 55200, 1152, 55200, 2),
             "attention, 120 x 920 tokens, one head": Attention(120, 1, 920, 920, 72, rotary=True)}
# Tiles of a product that follow from the published parts: 2 MiB of input and 0.25 MiB of weight are 256 rows and 32 columns.
PRODUCT, TILES = Product(4096, 4096, 4096), ((256, 32), (128, 32), (64, 64))


def operators(machine):
    """(name, mapping) of the single operators and of the tiles of a product."""
    for name, work in OPERATORS.items():
        yield name, map_operator(work, machine)
    for rows, columns in TILES:
        yield f"product {PRODUCT.shape()}", product_tile(PRODUCT, rows, columns, True, machine)
