// How this process takes memory from the system and returns it.
#pragma once

#include <cstdint>

namespace tessera {

// From now on, the process keeps freed memory for the next tensors: see TensorHeap. Meant for programs, when
// they start, before there are tensors. Does nothing where the system never promises more memory than it
// has.
void keep_freed_memory();

// Returns how many bytes this process can have in all: those of the machine, within the limits of its control
// groups (version 2); the largest int64_t if the system does not say. The number does not change during a
// run.
uint64_t total_memory();

}  // namespace tessera
