// What a partition sends in the collectives of a program in StableHLO.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/stablehlo_reader.h"
#include "plan/trace.h"

namespace tessera::plan {

bool is_collective(const ProgramOperation& operation);

// How many partitions the collectives of a program name: the largest number and one.
int64_t partitions_of(const StablehloModule& module);

// The groups of partitions that exchange with each other. Throws Error(kInput) for damaged ones.
std::vector<std::vector<int64_t>> replica_groups(const StablehloModule& module,
                                                 const ProgramOperation& operation);

// A collective by itself, with M the part of one of N partitions: all_reduce sends 2 M (N - 1) round a ring,
// all_gather and reduce_scatter M (N - 1), all_to_all a part to each other, and collective_permute what it
// says. Nothing for a partition that takes no part. Throws Error(kInput) for groups that are damaged, and for
// collectives whose messages are not known here.
std::vector<CollectiveEvent> collective_events(const StablehloModule& module, const ProgramFunction& function,
                                               const ProgramOperation& operation, int64_t rank);

// The collectives that are one of the engine's, in the axis `axis`, as a trace has it: what tokens_to_heads
// exchanges goes in one message to each other rank, and an all_reduce is a reduce_scatter and an all_gather.
std::vector<CollectiveEvent> engine_collective_events(const StablehloModule& module,
                                                      const ProgramFunction& function,
                                                      const std::vector<const ProgramOperation*>& operations,
                                                      const std::string& axis, int64_t rank);

}  // namespace tessera::plan
