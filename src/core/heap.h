// How this process takes memory from the system and gives it back (glibc; nothing elsewhere).
#pragma once

#include <cstdint>

namespace tessera {

// From now on, memory that is freed stays with the process for the next tensor. By default tensors above 32
// MiB are mapped and unmapped one by one, and their pages zeroed and entered each time. For programs, at
// their begin.
void keep_freed_memory();

// Gives free memory back: where what comes next will not need it.
void return_freed_memory();

// While it lives, large tensors are mapped one by one all the same, and none of their memory stays: where
// they take so much that no freed piece may lie idle.
class MappedTensors {
 public:
  explicit MappedTensors(bool is_wanted);
  ~MappedTensors();
  MappedTensors(const MappedTensors&) = delete;
  MappedTensors& operator=(const MappedTensors&) = delete;

 private:
  bool is_wanted_;
};

// Bytes that the system would give now, without swapping, within the limit of this process's control group;
// where it does not say, the most there can be.
uint64_t available_memory();

}  // namespace tessera
