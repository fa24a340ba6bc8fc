// Reads the environment variables of ranks that another launcher started.
#pragma once

#include <functional>
#include <optional>

#include "comm/world.h"

namespace tessera::launch {

// Returns the value of a variable, or nullptr: std::getenv, or a table in tests.
using Environment = std::function<const char*(const char* name)>;

// Returns this rank's place as given by torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), Open MPI
// (OMPI_COMM_WORLD_*), MPICH (PMI_*) or Slurm's srun (SLURM_PROCID, ...), tried in this order, with
// MASTER_ADDR and MASTER_PORT (127.0.0.1:29500); returns nothing if there is no launcher. Throws
// Error(kUsage) that names the variable if one is missing or invalid.
std::optional<comm::Rendezvous> read_rank_environment(const Environment& get);

}  // namespace tessera::launch
