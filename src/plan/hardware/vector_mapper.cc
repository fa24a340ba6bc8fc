// Elementwise operators and norms: rows are dealt to tiles in parts.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "plan/hardware/mapping.h"

namespace tessera::plan {
namespace {

// The number of elements that are read for each row.
double read_by_row(const VectorWork& work) {
  return static_cast<double>(work.width * work.inputs) + work.others / static_cast<double>(work.rows);
}

// The SRAM that a tile needs for parts of `rows`, with one or two of each buffer.
double sram_bytes(const VectorWork& work, int64_t rows, int64_t element_bytes, bool overlaps) {
  const auto part = static_cast<double>(rows) * (read_by_row(work) + static_cast<double>(work.width));
  return ((overlaps ? 2 : 1) * part + static_cast<double>(work.weights)) * static_cast<double>(element_bytes);
}

Cost cost_of(const VectorWork& work, int64_t rows, const Machine& machine, const std::string& dtype,
             bool overlaps) {
  const auto bytes = static_cast<double>(dtype_bytes(dtype));
  const int64_t parts = divide_up(work.rows, rows), turns = divide_up(parts, machine.tiles);
  const double active_rows = static_cast<double>(std::min(std::min(machine.tiles, parts) * rows, work.rows));
  const auto width = static_cast<double>(work.width), weights = static_cast<double>(work.weights);
  Cost cost;
  cost.compute = static_cast<double>(turns * rows) * width * work.operations_per_element /
                 machine.vector_rates.at(dtype);
  cost.dram_bytes = demand_of(work).elements * bytes;
  // The weights are read once and passed from tile to tile.
  if (parts > 1 && machine.tiles > 1 && work.weights > 0) {
    cost.noc_bytes = weights * bytes;
    cost.noc_hops = static_cast<double>(machine.grid_rows + machine.grid_columns - 2);
  }
  cost.turns = static_cast<double>(turns);
  cost.fill_bytes = (active_rows * read_by_row(work) + weights) * bytes;
  cost.drain_bytes = active_rows * width * bytes;
  cost.overlaps = overlaps;
  return cost;
}

}  // namespace

Mapping map_vector(const VectorWork& work, const Machine& machine, const std::string& dtype) {
  const int64_t bytes = dtype_bytes(dtype);
  std::optional<Cost> best;
  int64_t best_rows = 0;
  for (const int64_t rows : tile_sizes(work.rows, 1)) {
    if (sram_bytes(work, rows, bytes, false) > machine.sram_bytes) break;
    const bool overlaps = sram_bytes(work, rows, bytes, true) <= machine.sram_bytes;
    const Cost cost = cost_of(work, rows, machine, dtype, overlaps);
    if (best && latency_of(*best, machine) <= latency_of(cost, machine)) continue;
    best = cost;
    best_rows = rows;
  }
  if (!best) {
    Mapping none;
    none.obstacle = fmt::format("one row takes {:.0f} KiB, a tile has {:.0f} KiB",
                                sram_bytes(work, 1, bytes, false) / 1024, machine.sram_bytes / 1024);
    return none;
  }
  return make_mapping(*best, fmt::format("{} rows{}", best_rows, best->overlaps ? "" : ", single buffers"),
                      work, machine, dtype);
}

}  // namespace tessera::plan
