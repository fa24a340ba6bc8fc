// How this process takes memory from the system and returns it.
#pragma once

namespace tessera {

// From now on, the process keeps freed memory for the next tensors: see TensorHeap. Meant for programs, when
// they start, before there are tensors. Does nothing where the system never promises more memory than it
// has.
void keep_freed_memory();

}  // namespace tessera
