// What a partition sends in the collectives of a program in StableHLO.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/stablehlo_reader.h"
#include "plan/trace.h"

namespace tessera::plan {

bool is_collective(const ProgramOperation& operation);

// The number of partitions that the collectives of a program refer to: the largest number plus one.
int64_t partitions_of(const StablehloModule& module);

// The groups of partitions that exchange with each other. Throws Error(kInput) for malformed ones.
std::vector<std::vector<int64_t>> replica_groups(const StablehloModule& module,
                                                 const ProgramOperation& operation);

// A single collective, where M is the part of one of N partitions: all_reduce sends 2 M (N - 1) round a ring,
// all_gather and reduce_scatter M (N - 1), all_to_all a part to each other partition, and collective_permute
// what its pairs give. Returns nothing for a partition that does not take part. Throws Error(kInput) for
// groups that are damaged, and for collectives whose messages are not known here.
std::vector<CollectiveEvent> collective_events(const StablehloModule& module, const ProgramFunction& function,
                                               const ProgramOperation& operation, int64_t rank);

// The same for collectives of the engine, in the axis `axis`, in the form of a trace: tokens_to_heads sends
// one message to each other rank, and an all_reduce consists of a reduce_scatter and an all_gather.
std::vector<CollectiveEvent> engine_collective_events(const StablehloModule& module,
                                                      const ProgramFunction& function,
                                                      const std::vector<const ProgramOperation*>& operations,
                                                      const std::string& axis, int64_t rank);

}  // namespace tessera::plan
