// Maps products with weights: which range of rows, inner dimension and columns a tile works on, and which of
// the three matrices stays in place meanwhile.
#include <fmt/format.h>

#include <algorithm>

#include "plan/hardware/mapping.h"

namespace tessera::plan {
namespace {

constexpr double kAccumulatorBytes = 4;  // partial sums are in fp32

enum class Stationary { kInput, kWeight, kOutput };

struct Split {
  Stationary stationary = Stationary::kOutput;
  int64_t rows = 0, inner = 0, columns = 0;  // of a tile
  bool turned = false;                       // whether the grid of tiles is transposed, for kOutput
  bool overlaps = false;
};

// A product, a machine and a dtype, as numbers.
struct Problem {
  const GemmWork& work;
  const Machine& machine;
  double bytes;                   // per element
  double gemm_rate, vector_rate;  // of a tile

  // The number of elements that rows of the input, or columns of the weights, take in the DRAM.
  double input(int64_t rows, int64_t inner) const {
    return static_cast<double>(rows) * static_cast<double>(inner) / work.overlap;
  }
  double weights(int64_t columns, int64_t inner) const {
    return static_cast<double>(columns) * static_cast<double>(inner);
  }
  double compute(double outputs, double inner) const {
    return outputs * (2 * inner / gemm_rate + work.activation_operations / vector_rate);
  }
};

double real(int64_t value) {
  return static_cast<double>(value);
}

std::string split_text(const Split& split) {
  const char* const moves = split.stationary == Stationary::kInput    ? "input stays"
                            : split.stationary == Stationary::kWeight ? "weight stays"
                                                                      : "output stays";
  return fmt::format("{} x {} x {}, {}{}", split.rows, split.inner, split.columns, moves,
                     split.overlaps ? "" : ", single buffers");
}

// The smallest SRAM for a tile of output whose inputs arrive in steps along the inner dimension.
double output_sram(const Problem& problem, const Split& split, bool overlaps) {
  const double step = real(split.rows + split.columns) * real(split.inner) * problem.bytes;
  const double sums = real(split.rows) * real(split.columns) * kAccumulatorBytes;
  const double stored = real(split.rows) * real(split.columns) * problem.bytes;
  return overlaps ? sums + stored + 2 * step : sums + step;
}

// Each tile sums up one tile of the output. Tiles in a row of the grid share rows of the input, those in a
// column share columns of the weights: each of them passes on what it reads.
Cost output_stationary(const Problem& problem, const Split& split) {
  const GemmWork& work = problem.work;
  int64_t grid_rows = problem.machine.grid_rows, grid_columns = problem.machine.grid_columns;
  if (split.turned) std::swap(grid_rows, grid_columns);
  const int64_t row_parts = divide_up(work.rows, split.rows);
  const int64_t column_parts = divide_up(work.columns, split.columns);
  const int64_t steps = divide_up(work.inner, split.inner);
  const int64_t row_waves = divide_up(row_parts, grid_rows),
                column_waves = divide_up(column_parts, grid_columns);
  const double waves = real(row_waves) * real(column_waves), inner = real(steps * split.inner);
  const int64_t active_rows = std::min(grid_rows, row_parts),
                active_columns = std::min(grid_columns, column_parts);
  const double outputs = real(split.rows) * real(split.columns);
  Cost cost;
  cost.compute = problem.compute(waves * outputs, inner);
  cost.dram_bytes = (problem.input(work.rows, work.inner) * real(column_waves) +
                     problem.weights(work.columns, work.inner) * real(row_waves) +
                     real(work.rows) * real(work.columns) + real(work.bias)) *
                    problem.bytes;
  const auto from_others = [](int64_t sharing) { return real(sharing - 1) / real(sharing); };
  cost.noc_bytes =
      waves * inner * problem.bytes *
      (real(split.rows) * from_others(active_columns) + real(split.columns) * from_others(active_rows));
  cost.noc_hops = real(active_rows + active_columns - 2);
  cost.turns = waves * real(steps);
  const int64_t step = std::min(split.inner, work.inner);
  cost.fill_bytes = (problem.input(std::min(active_rows * split.rows, work.rows), step) +
                     problem.weights(std::min(active_columns * split.columns, work.columns), step)) *
                    problem.bytes;
  cost.drain_bytes = real(std::min(active_rows * split.rows, work.rows)) *
                     real(std::min(active_columns * split.columns, work.columns)) * problem.bytes;
  cost.overlaps = split.overlaps;
  return cost;
}

// The SRAM for a block that stays, for blocks that pass through (one in use, one arriving, one being read)
// and for their products.
double ring_sram(const Problem& problem, double stays, double passes, bool overlaps) {
  const double inner = real(divide_up(problem.work.inner, kGranule) * kGranule);
  const double product = stays * passes;
  return (overlaps ? (2 * stays + 3 * passes) * inner + 2 * product
                   : (stays + 2 * passes) * inner + product) *
         problem.bytes;
}

// Each tile keeps a block of one matrix, complete along the inner dimension; blocks of the other matrix pass
// round the ring of tiles, so that each is read from the DRAM only once.
Cost ring(const Problem& problem, const Split& split) {
  const GemmWork& work = problem.work;
  const bool input_stays = split.stationary == Stationary::kInput;
  const int64_t stay_size = input_stays ? work.rows : work.columns;
  const int64_t pass_size = input_stays ? work.columns : work.rows;
  const int64_t stays = input_stays ? split.rows : split.columns;
  const int64_t passes = input_stays ? split.columns : split.rows;
  const int64_t tiles = problem.machine.tiles;
  const int64_t stay_parts = divide_up(stay_size, stays), pass_parts = divide_up(pass_size, passes);
  const int64_t rounds = divide_up(stay_parts, tiles), groups = divide_up(pass_parts, tiles);
  const int64_t ring_size = std::min(tiles, pass_parts), active = std::min(tiles, stay_parts);
  const double inner = real(work.inner), padded_inner = real(split.inner);
  // The number of elements that this many rows, or columns, of a matrix take in the DRAM.
  const auto read = [&](bool is_input, int64_t size) {
    return is_input ? problem.input(size, work.inner) : problem.weights(size, work.inner);
  };
  const double hops = real(rounds) * real(groups) * real(ring_size - 1);
  Cost cost;
  cost.compute = problem.compute(real(rounds) * real(pass_parts) * real(stays) * real(passes), padded_inner);
  cost.dram_bytes = (read(input_stays, stay_size) + real(rounds) * read(!input_stays, pass_size) +
                     real(stay_size) * real(pass_size) + real(work.bias)) *
                    problem.bytes;
  cost.noc_bytes = hops * real(passes) * inner * problem.bytes;
  cost.noc_hops = hops;
  cost.turns = real(rounds) * real(groups);
  cost.fill_bytes = (read(input_stays, std::min(active * stays, stay_size)) +
                     read(!input_stays, std::min(ring_size * passes, pass_size))) *
                    problem.bytes;
  cost.drain_bytes =
      real(std::min(active * stays, stay_size)) * real(std::min(passes, pass_size)) * problem.bytes;
  cost.overlaps = split.overlaps;
  return cost;
}

// The best split so far.
class Search {
 public:
  explicit Search(const Problem& problem) : problem_(problem) {}

  void try_split(const Split& split) {
    const Cost cost =
        split.stationary == Stationary::kOutput ? output_stationary(problem_, split) : ring(problem_, split);
    const double latency = latency_of(cost, problem_.machine);
    if (found_ && latency >= latency_) return;
    found_ = true;
    latency_ = latency;
    cost_ = cost;
    split_ = split;
  }

  bool found() const { return found_; }
  const Cost& cost() const { return cost_; }
  const Split& split() const { return split_; }

 private:
  const Problem& problem_;
  bool found_ = false;
  double latency_ = 0;
  Cost cost_;
  Split split_;
};

// The sizes of tiles, in rows and columns, to try, ascending.
struct TileChoices {
  std::vector<int64_t> rows, columns;
};

// A tile's needs grow with each of its sizes, so the first size that does not fit ends a loop.
void try_output_stationary(Search& search, const Problem& problem, const TileChoices& choices) {
  const std::vector<int64_t> steps = tile_sizes(problem.work.inner, kGranule);
  const double sram = problem.machine.sram_bytes;
  for (const int64_t rows : choices.rows) {
    if (output_sram(problem, {.rows = rows, .inner = steps[0], .columns = choices.columns[0]}, false) > sram)
      break;
    for (const int64_t columns : choices.columns) {
      for (const int64_t inner : steps) {
        Split split{Stationary::kOutput, rows, inner, columns, false, false};
        if (output_sram(problem, split, false) > sram) break;
        split.overlaps = output_sram(problem, split, true) <= sram;
        search.try_split(split);
        split.turned = true;
        search.try_split(split);
      }
    }
  }
}

void try_rings(Search& search, const Problem& problem, const TileChoices& choices) {
  const int64_t inner = divide_up(problem.work.inner, kGranule) * kGranule;
  for (const Stationary stationary : {Stationary::kInput, Stationary::kWeight}) {
    for (const int64_t rows : choices.rows) {
      for (const int64_t columns : choices.columns) {
        const bool input_stays = stationary == Stationary::kInput;
        const double stays = real(input_stays ? rows : columns), passes = real(input_stays ? columns : rows);
        if (ring_sram(problem, stays, passes, false) > problem.machine.sram_bytes) break;
        const bool overlaps = ring_sram(problem, stays, passes, true) <= problem.machine.sram_bytes;
        search.try_split({stationary, rows, inner, columns, false, overlaps});
      }
    }
  }
}

}  // namespace

Mapping map_gemm(const GemmWork& work, const Machine& machine, const std::string& dtype) {
  const Problem problem{work, machine, real(dtype_bytes(dtype)), machine.gemm_rates.at(dtype),
                        machine.vector_rates.at(dtype)};
  const TileChoices choices{tile_sizes(work.rows, kGranule), tile_sizes(work.columns, kGranule)};
  Search search(problem);
  try_output_stationary(search, problem, choices);
  try_rings(search, problem, choices);
  if (search.found()) return make_mapping(search.cost(), split_text(search.split()), work, machine, dtype);
  Mapping none;
  const Split least{.rows = choices.rows[0], .inner = kGranule, .columns = choices.columns[0]};
  none.obstacle =
      fmt::format("a tile of {} x {} x {} takes {:.1f} KiB, the SRAM has {:.1f} KiB", least.rows, least.inner,
                  least.columns, output_sram(problem, least, false) / 1024, machine.sram_bytes / 1024);
  return none;
}

}  // namespace tessera::plan
