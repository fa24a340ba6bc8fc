// Ranks that another launcher started: what it put into their environment.
#pragma once

#include <functional>
#include <optional>

#include "comm/world.h"

namespace tessera::launch {

// The value of a variable, or nullptr: std::getenv, or a table in tests.
using Environment = std::function<const char*(const char* name)>;

// This rank's place as torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), Open MPI
// (OMPI_COMM_WORLD_*), MPICH (PMI_*) or Slurm's srun (SLURM_PROCID, ...) tell it, looked for in this order,
// with MASTER_ADDR and MASTER_PORT (127.0.0.1:29500); nothing when no launcher left a trace. Throws
// Error(kUsage) that names the variable when one is missing or makes no sense.
std::optional<comm::Rendezvous> read_rank_environment(const Environment& get);

}  // namespace tessera::launch
