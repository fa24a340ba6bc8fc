// How an operator is split over the tiles of a machine, and how long that takes.
//
// Data moves from the DRAM, which all tiles share, to the SRAM of tiles and between them over the network on
// chip (NoC). Where the SRAM holds two of each buffer, transfers and computing overlap:
//
//   latency = fill + max(DRAM - fill - drain, compute, NoC, (turns - 1) x DRAM latency) + drain
//
// with the first load (fill), the last store (drain), and the time for which all turns occupy each resource.
// Otherwise the three follow each other. The latency is therefore never below what any single resource needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/hardware/operator.h"
#include "plan/machine.h"

namespace tessera::plan {

// The demand of a split on the resources of a machine.
struct Cost {
  double compute = 0;                      // s, on the busiest tile
  double dram_bytes = 0;                   // for all tiles
  double noc_bytes = 0, noc_hops = 0;      // for the busiest tile; hops that wait for each other
  double turns = 1;                        // loads that follow each other
  double fill_bytes = 0, drain_bytes = 0;  // for the first load and the last store
  bool overlaps = false;                   // whether the SRAM has room for two of each buffer
};

double latency_of(const Cost& cost, const Machine& machine);

// What takes longest; kLatency is the DRAM's latency, which matters if loads are small.
enum class Roof { kCompute, kDram, kNoc, kLatency };
std::string roof_name(Roof roof);  // "compute", "DRAM", "NoC", "latency"

struct Mapping {
  std::string split;     // for display; empty if nothing fits
  std::string obstacle;  // why nothing fits; empty if something does
  double compute = 0;    // s in which the busiest tile computes
  double dram = 0;       // s in which the DRAM is busy
  double noc = 0;        // s in which the network is busy
  double latency = 0;    // s, for one run
  double dram_bytes = 0, noc_bytes = 0;
  double utilization = 0;  // the share of the machine's rates that the operator's necessary work takes
  Roof roof = Roof::kCompute;

  bool fits() const { return obstacle.empty(); }
  double communication() const { return dram + noc; }  // s, if nothing overlapped
};

// Throws Error(kInput) if the machine lacks the dtype. If an operator fits in no way, the Mapping has an
// obstacle.
Mapping map_operator(const Operator& each, const Machine& machine, const std::string& dtype);

// The mappers that map_operator() uses.
Mapping map_vector(const VectorWork& work, const Machine& machine, const std::string& dtype);
Mapping map_gemm(const GemmWork& work, const Machine& machine, const std::string& dtype);
Mapping map_attention(const AttentionWork& work, const Machine& machine, const std::string& dtype);

// Makes a mapping from the cost of the chosen split.
Mapping make_mapping(const Cost& cost, std::string split, const Work& work, const Machine& machine,
                     const std::string& dtype);

// Tile sizes along a dimension, ascending: multiples of `granule`, the smallest for each number of parts. A
// larger tile with the same number of parts is never better.
std::vector<int64_t> tile_sizes(int64_t size, int64_t granule);

// How many elements a matrix unit multiplies at once in each dimension.
inline constexpr int64_t kGranule = 16;

inline int64_t divide_up(int64_t size, int64_t by) {
  return (size + by - 1) / by;
}

}  // namespace tessera::plan
