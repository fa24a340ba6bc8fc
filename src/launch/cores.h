// Which cores a rank computes on when several share a host.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::launch {

// The cores of each of `ranks`: equal shares of `cores`, neighbours together, the rest unused. Nothing when
// there are fewer cores than ranks times `threads`: then the kernel schedules better.
std::vector<int> share_of(const std::vector<int>& cores, int64_t rank, int64_t ranks, int64_t threads);

// Cores that this process may run on, ascending.
std::vector<int> allowed_cores();

// True when nobody (a launcher, taskset) has chosen cores for this process.
bool all_cores_allowed();

// Keeps this thread, and those that it starts from now on, on `cores`; does nothing for none.
void pin_to(const std::vector<int>& cores);

}  // namespace tessera::launch
