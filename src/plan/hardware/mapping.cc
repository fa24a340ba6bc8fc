#include "plan/hardware/mapping.h"

#include <algorithm>

namespace tessera::plan {

double latency_of(const Cost& cost, const Machine& machine) {
  const auto dram = [&](double bytes) { return bytes / machine.dram_bandwidth; };
  const double fill = dram(cost.fill_bytes) + machine.dram_latency;
  const double drain = dram(cost.drain_bytes) + machine.dram_latency;
  const double others = std::max(0.0, dram(cost.dram_bytes - cost.fill_bytes - cost.drain_bytes));
  const double noc = cost.noc_bytes / machine.noc_bandwidth + cost.noc_hops * machine.hop_latency;
  const double waits = (cost.turns - 1) * machine.dram_latency;
  const double body =
      cost.overlaps ? std::max({others, cost.compute, noc, waits}) : others + waits + cost.compute + noc;
  return fill + body + drain;
}

std::string roof_name(Roof roof) {
  constexpr const char* kNames[] = {"compute", "DRAM", "NoC", "latency"};
  return kNames[static_cast<int>(roof)];
}

Mapping make_mapping(const Cost& cost, std::string split, const Work& work, const Machine& machine,
                     const std::string& dtype) {
  const Demand demand = demand_of(work);
  Mapping mapping;
  mapping.split = std::move(split);
  mapping.compute = cost.compute;
  mapping.dram = cost.dram_bytes / machine.dram_bandwidth;
  mapping.noc = cost.noc_bytes / machine.noc_bandwidth + cost.noc_hops * machine.hop_latency;
  mapping.latency = latency_of(cost, machine);
  mapping.dram_bytes = cost.dram_bytes;
  mapping.noc_bytes = cost.noc_bytes;
  mapping.utilization = (demand.gemm_operations / machine.gemm_rate(dtype) +
                         demand.vector_operations / machine.vector_rate(dtype)) /
                        mapping.latency;
  const double waits = (cost.turns + 1) * machine.dram_latency;
  const double most = std::max({mapping.compute, mapping.dram, mapping.noc, waits});
  mapping.roof = most == mapping.compute ? Roof::kCompute
                 : most == mapping.dram  ? Roof::kDram
                 : most == mapping.noc   ? Roof::kNoc
                                         : Roof::kLatency;
  return mapping;
}

Mapping map_operator(const Operator& each, const Machine& machine, const std::string& dtype) {
  require_dtype(machine, dtype);
  if (const auto* vector = std::get_if<VectorWork>(&each.work)) return map_vector(*vector, machine, dtype);
  if (const auto* gemm = std::get_if<GemmWork>(&each.work)) return map_gemm(*gemm, machine, dtype);
  return map_attention(std::get<AttentionWork>(each.work), machine, dtype);
}

std::vector<int64_t> tile_sizes(int64_t size, int64_t granule) {
  const int64_t blocks = divide_up(size, granule);
  std::vector<int64_t> sizes;
  for (int64_t parts = 1; parts <= blocks;) {
    const int64_t tile = divide_up(blocks, parts);
    sizes.push_back(tile * granule);
    if (tile == 1) break;
    parts = (blocks - 1) / (tile - 1) + 1;  // the smallest number of parts with a smaller tile
  }
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

}  // namespace tessera::plan
