// Machines for tests of hardware analysis.
#pragma once

#include <cmath>
#include <random>

#include "plan/machine.h"

namespace tessera::plan {

// The published one: 16 tiles of 3 MiB, 128 GB/s between them, 100 GB/s of DRAM.
inline Machine tx8() {
  Machine machine;
  machine.name = "tx8";
  machine.where = "tx8.json";
  machine.tiles = 16;
  machine.grid_rows = machine.grid_columns = 4;
  machine.sram_bytes = 3 << 20;
  machine.noc_bandwidth = 128e9;
  machine.hop_latency = 1e-8;
  machine.dram_bandwidth = 100e9;
  machine.dram_latency = 1e-7;
  machine.gemm_rates = {{"bf16", 8e12}};
  machine.vector_rates = {{"bf16", 0.0625e12}};
  return machine;
}

// From a core with a slow memory to a large GPU.
inline Machine random_machine(std::mt19937& random) {
  const auto between = [&](double least, double most) {
    return least * std::pow(most / least, std::uniform_real_distribution<>(0, 1)(random));
  };
  Machine machine = tx8();
  machine.grid_rows = std::uniform_int_distribution<int64_t>(1, 12)(random);
  machine.grid_columns = std::uniform_int_distribution<int64_t>(1, 12)(random);
  machine.tiles = machine.grid_rows * machine.grid_columns;
  machine.sram_bytes = between(8 << 10, 8 << 20);
  machine.noc_bandwidth = between(1e9, 1e12);
  machine.hop_latency = between(1e-9, 1e-6);
  machine.dram_bandwidth = between(1e9, 1e13);
  machine.dram_latency = between(1e-9, 1e-5);
  machine.gemm_rates["bf16"] = between(1e9, 1e14);
  machine.vector_rates["bf16"] = between(1e8, 1e13);
  return machine;
}

}  // namespace tessera::plan
