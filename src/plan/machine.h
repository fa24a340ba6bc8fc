// A machine: how fast a device computes and moves data, and what it holds, read from a JSON file. A device is
// a chip of tiles that share one memory: the tiles of an accelerator, the multiprocessors of a GPU, or the
// cores of a processor. docs/hardware.md lists the keys with their units.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "plan/efficiency.h"
#include "plan/link.h"

namespace tessera::plan {

struct Machine {
  std::string name;
  std::string where;           // the file, for messages
  std::string device = "cpu";  // "cpu" or "cuda": the default device of runs on it

  int64_t tiles = 0, grid_rows = 0, grid_columns = 0;
  double sram_bytes = 0;                      // of a tile
  double noc_bandwidth = 0, hop_latency = 0;  // for a tile's port of the network between tiles, bytes/s; s
  double dram_bandwidth = 0;                  // bytes/s, shared by all tiles
  double dram_latency = 0;                    // s
  // For a tile, by the names of dtypes, which are the same in both.
  std::map<std::string, double> gemm_rates;    // FLOP/s
  std::map<std::string, double> vector_rates;  // elementwise operations/s
  std::vector<Link> links;                     // the first is the default

  // What a data sheet does not contain; `tessera calibrate` measures or fits it. Without it, kernels reach
  // the rates above, and the host causes no delay.
  Efficiency efficiency;
  double launch = 0;                   // s in which the host is busy with an operation of the model
  std::optional<double> memory_bytes;  // of a device
  // Bytes/s of weights that are read while encoding, by the dtype of their layers, and of memory that is new
  // to the process. Whatever has no rate takes no time.
  std::map<std::string, double> load_rates;
  std::optional<double> first_use_rate;
  // The share of its speed that a device keeps while a number of devices of the host compute: [0] is for one.
  // The last entry holds for larger numbers. A kind without shares is not slowed down.
  std::map<WorkKind, std::vector<double>> sharing;
  std::vector<double> speeds;  // of the devices, by rank, if they differ: 1 is the speed of this machine
  Json text;                   // the file

  // The share of its speed that one of this many devices keeps for work of a kind.
  double shared_speed(WorkKind kind, int64_t devices) const;
  double speed(int64_t rank) const;

  // For all tiles.
  double gemm_rate(const std::string& dtype) const {
    return gemm_rates.at(dtype) * static_cast<double>(tiles);
  }
  double vector_rate(const std::string& dtype) const {
    return vector_rates.at(dtype) * static_cast<double>(tiles);
  }
};

// Bytes of an element of "fp32", "fp16", "bf16" or "fp8"; 0 for other names.
int64_t dtype_bytes(const std::string& dtype);

// Every key is required and unknown keys are refused; sizes and rates are positive and finite. Throws
// Error(kInput) that names the file and the key.
Machine read_machine(const JsonConfig& config);
Machine read_machine(const std::filesystem::path& path);

// Throws Error(kInput) when the machine has no rates for the dtype.
void require_dtype(const Machine& machine, const std::string& dtype);

// Returns the dtype itself, or the nearest that the machine has: first the other one of 16 bits, then a wider
// one.
std::string nearest_dtype(const Machine& machine, const std::string& dtype);

// Returns the link of this kind, or the first. Throws Error(kUsage) if there is none of this kind, and
// Error(kInput) if the machine has no links at all.
const Link& find_link(const Machine& machine, const std::optional<std::string>& kind);

}  // namespace tessera::plan
