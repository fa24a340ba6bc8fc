#include "plan/hardware/published.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::plan {
namespace {

constexpr double kMebi = 1 << 20, kGibi = 1 << 30, kGiga = 1e9, kTera = 1e12, kMilli = 1e-3;
constexpr double kGemmHops = 5;
constexpr int64_t kFewestBlocks = 16;  // of a sequence in attention

// The machine in the units of the formulas: GB/s, ms, and 10^12 operations/s, which are taken for giga a ms.
struct Units {
  double tiles, sram, noc, hop, dram, wait, gemm, vector, bytes;

  Units(const Machine& machine, const std::string& dtype)
      : tiles(static_cast<double>(machine.tiles)),
        sram(machine.sram_bytes / kMebi),
        noc(machine.noc_bandwidth / kGiga),
        hop(machine.hop_latency / kMilli),
        dram(machine.dram_bandwidth / kGiga),
        wait(machine.dram_latency / kMilli),
        gemm(machine.gemm_rates.at(dtype) / kTera),
        vector(machine.vector_rates.at(dtype) / kTera),
        bytes(static_cast<double>(dtype_bytes(dtype))) {}

  double mebi(double elements) const { return elements * bytes / kMebi; }
  // The loads of all tiles queue at the DRAM.
  double access(double size) const { return size * tiles / dram + wait; }
};

double real(int64_t value) {
  return static_cast<double>(value);
}

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> small, large;
  for (int64_t each = 1; each * each <= number; ++each) {
    if (number % each != 0) continue;
    small.push_back(each);
    if (each != number / each) large.push_back(number / each);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

int64_t padded(int64_t size) {
  return divide_up(size, kGranule) * kGranule;
}

Mapping mapping_of(std::string split, double compute, double dram, double noc, double latency) {
  Mapping mapping;
  mapping.split = std::move(split);
  mapping.compute = compute * kMilli;
  mapping.dram = dram * kMilli;
  mapping.noc = noc * kMilli;
  mapping.latency = latency * kMilli;
  mapping.utilization = compute / latency;
  mapping.roof = compute >= std::max(dram, noc) ? Roof::kCompute : dram >= noc ? Roof::kDram : Roof::kNoc;
  return mapping;
}

Mapping no_mapping(const Machine& machine, const std::string& what) {
  Mapping none;
  none.obstacle = fmt::format("{} fits into the {:.0f} KiB of a tile", what, machine.sram_bytes / 1024);
  return none;
}

std::optional<Mapping> vector_parts(const VectorWork& work, int64_t parts, const Units& units) {
  const double elements = real(work.rows) * real(work.width);
  const double input = units.mebi(elements) / real(parts), weights = units.mebi(real(work.weights));
  const double weight_buffers = parts <= static_cast<int64_t>(units.tiles) ? 1 : 2;
  if (input + weight_buffers * weights > units.sram) return std::nullopt;
  const double turns = real(divide_up(parts, static_cast<int64_t>(units.tiles)));
  const double compute = elements * work.operations_per_element / kGibi / real(parts) / units.vector;
  const double load = units.access(input), weights_load = units.access(weights), store = load;
  const double latency = load + weights_load +
                         std::max((turns - 1) * std::max(load, compute) + compute, turns * compute) + store;
  return mapping_of(fmt::format("{} parts", parts), turns * compute, turns * load + weights_load + store, 0,
                    latency);
}

// The blocks of a product in parts that stay and parts that pass.
struct RingParts {
  double stays, passes, product;  // MiB of a part
  int64_t stay_parts, pass_parts;
};

std::optional<Mapping> ring(const RingParts& parts, double compute, const Units& units, std::string split) {
  const double double_buffers = 2 * parts.stays + 3 * parts.passes + 2 * parts.product;
  if (double_buffers - parts.stays > units.sram) return std::nullopt;  // the input may have a single one
  const auto tiles = static_cast<int64_t>(units.tiles);
  const double rounds = real(divide_up(parts.stay_parts, tiles)),
               groups = real(divide_up(parts.pass_parts, tiles));
  const double hop = parts.passes / units.noc + units.hop * kGemmHops;
  const double turn = units.tiles * compute, ring = (units.tiles - 1) * hop;
  const double flow = turn >= ring ? turn : ring + compute;
  const double stay_load = units.access(parts.stays), pass_load = units.access(parts.passes);
  const double store = units.access(parts.product);
  const double body =
      (groups - 1) * rounds * std::max(flow, pass_load) + (rounds - 1) * std::max(stay_load, flow) + flow;
  const double busy = rounds * groups * turn;
  return mapping_of(std::move(split), busy, rounds * stay_load + rounds * groups * pass_load + store,
                    rounds * groups * ring, stay_load + pass_load + std::max(body, busy) + store);
}

std::optional<Mapping> attention_blocks(const AttentionWork& work, int64_t queries, int64_t keys,
                                        const Units& units) {
  const double batch = real(work.batch), head_dim = real(work.head_dim);
  const double turned = work.rotary ? real(queries + keys) * head_dim : 0;
  const double output = units.mebi(batch * real(queries) * head_dim), input = output + units.mebi(turned);
  const double key_block = units.mebi(2 * batch * real(keys) * head_dim);
  if (input + 3 * key_block + 2 * output > units.sram) return std::nullopt;
  const auto tiles = static_cast<int64_t>(units.tiles);
  const double rounds = real(divide_up(work.heads * (work.queries / queries), tiles));
  const double turns = real(divide_up(work.keys / keys, tiles));
  const double scores = batch * real(queries) * real(keys);
  const double product = 4 * scores * head_dim / kGiga / units.gemm;
  const double softmax = kSoftmaxOperations * scores / kGiga / units.vector;
  const double rotary = batch * turned / kGiga / units.vector;
  const double cycle = rotary + turns * units.tiles * product + softmax;
  const double load = units.access(input) + units.access(key_block), store = units.access(output);
  const double latency = load + (cycle - rotary) + (rounds - 1) * std::max(load, cycle) + store;
  return mapping_of(fmt::format("{} queries x {} keys", queries, keys), rounds * cycle, rounds * load + store,
                    0, latency);
}

// Blocks along a sequence: divisors of its padded length up to a sixteenth of the sequence.
std::vector<int64_t> block_choices(int64_t sequence, bool preset) {
  std::vector<int64_t> choices = preset ? std::vector{kPresetScores} : divisors(padded(sequence));
  std::erase_if(choices, [&](int64_t block) { return block > sequence / kFewestBlocks; });
  return choices;
}

}  // namespace

Mapping map_vector_as_published(const VectorWork& work, const Machine& machine, const MapOptions& options) {
  const Units units(machine, options.dtype);
  std::optional<Mapping> best;
  for (const int64_t parts : divisors(work.reduces ? work.sequence : work.sequence * work.width)) {
    const auto mapping = vector_parts(work, parts, units);
    if (mapping && (!best || mapping->utilization > best->utilization)) best = mapping;
  }
  return best ? *best : no_mapping(machine, fmt::format("no part of a sequence of {}", work.sequence));
}

std::optional<Mapping> published_gemm(const GemmWork& work, int64_t rows, int64_t columns, bool input_stays,
                                      const Machine& machine, const MapOptions& options) {
  const Units units(machine, options.dtype);
  const double inner = real(padded(work.inner)), outputs = real(rows) * real(columns);
  const double input = units.mebi(real(rows) * inner), weight = units.mebi(real(columns) * inner);
  const int64_t row_parts = divide_up(padded(work.rows), rows),
                column_parts = divide_up(padded(work.columns), columns);
  const double compute =
      2 * outputs * inner / kGibi / units.gemm + outputs * work.activation_operations / kGibi / units.vector;
  const RingParts parts = input_stays
                              ? RingParts{input, weight, units.mebi(outputs), row_parts, column_parts}
                              : RingParts{weight, input, units.mebi(outputs), column_parts, row_parts};
  return ring(parts, compute, units,
              fmt::format("{} x {}, {} stays", rows, columns, input_stays ? "input" : "weight"));
}

Mapping map_gemm_as_published(const GemmWork& work, const Machine& machine, const MapOptions& options) {
  std::vector<int64_t> rows = divisors(padded(work.rows)), columns = divisors(padded(work.columns));
  if (options.preset) {
    rows = {preset_tile(work).first};
    columns = {preset_tile(work).second};
  }
  std::optional<Mapping> best;
  for (const int64_t each_rows : rows) {
    for (const int64_t each_columns : columns) {
      for (const bool input_stays : {true, false}) {
        const auto mapping = published_gemm(work, each_rows, each_columns, input_stays, machine, options);
        if (mapping && (!best || mapping->latency < best->latency)) best = mapping;
      }
    }
  }
  return best ? *best : no_mapping(machine, "no tile");
}

Mapping map_attention_as_published(const AttentionWork& work, const Machine& machine,
                                   const MapOptions& options) {
  const Units units(machine, options.dtype);
  std::optional<Mapping> best;
  for (const int64_t queries : block_choices(work.queries, options.preset)) {
    for (const int64_t keys : block_choices(work.keys, options.preset)) {
      const auto mapping = attention_blocks(work, queries, keys, units);
      if (mapping && (!best || mapping->utilization > best->utilization)) best = mapping;
    }
  }
  return best ? *best
              : no_mapping(machine, fmt::format("no block of at most a sixteenth of {} queries and {} keys",
                                                work.queries, work.keys));
}

}  // namespace tessera::plan
