// Chooses the cores on which a rank computes when several ranks share a host.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::launch {

// Returns the cores of rank `rank` of `ranks`: equal shares of consecutive `cores`; the rest is unused.
// Returns nothing if there are fewer cores than ranks times `threads`, because then the kernel schedules
// better.
std::vector<int> share_of(const std::vector<int>& cores, int64_t rank, int64_t ranks, int64_t threads);

// Returns the cores that this process may run on, in ascending order.
std::vector<int> allowed_cores();

// Whether all cores of the host are allowed, that is, neither a launcher nor taskset has chosen cores for
// this process.
bool all_cores_allowed();

// Restricts this thread, and those that it starts from now on, to `cores`; does nothing if `cores` is empty.
void pin_to(const std::vector<int>& cores);

}  // namespace tessera::launch
