// Controls how this process takes memory from the system and returns it (glibc only; elsewhere nothing
// happens).
#pragma once

#include <cstdint>

namespace tessera {

// From now on, the process keeps freed memory for the next tensors. By default glibc maps and unmaps tensors
// above 32 MiB one by one, and the kernel zeroes and maps their pages each time. Meant for programs, when
// they start.
void keep_freed_memory();

// Returns free memory to the system. Call it when the next work will not need it.
void return_freed_memory();

// While an object lives, large tensors are mapped one by one all the same, and their memory is returned at
// once. Use it where tensors take so much memory that no free piece may stay unused.
class MappedTensors {
 public:
  explicit MappedTensors(bool is_wanted);
  ~MappedTensors();
  MappedTensors(const MappedTensors&) = delete;
  MappedTensors& operator=(const MappedTensors&) = delete;

 private:
  bool is_wanted_;
};

// Returns how many bytes this process can have in all: those of the machine, within the limit of its control
// group; the largest int64_t if the system does not say. The number does not change during a run.
uint64_t total_memory();

}  // namespace tessera
