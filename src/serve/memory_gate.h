// Decides which requests exceed the memory of this machine, before they become jobs: otherwise the kernel
// would kill the ranks that try.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/host.h"
#include "job/job.h"
#include "serve/admission.h"

namespace tessera::serve {

// All members except look() must be called on one thread.
class MemoryGate {
 public:
  // `base` is that of admit(), and must outlive this. What counts is how much each limit allows at most, not
  // what is free.
  MemoryGate(const job::Job& base, std::vector<MemoryLimit> limits);

  // The memory that other worlds hold permanently. When this number changes, earlier answers are forgotten.
  void hold_by_others(uint64_t bytes);
  uint64_t held_by_others() const { return held_; }

  // What a request lacks, in words; empty if it lacks nothing.
  using Lack = std::string;
  // Returns nothing if look() is needed.
  std::optional<Lack> known(const Admitted& request) const;
  // Traces a run, which takes long. `held` is held_by_others().
  Lack look(const Admitted& request, uint64_t held) const;
  // Records the answer for requests of this kind, as long as others hold this many bytes.
  void keep(const Admitted& request, const Lack& lack, uint64_t held);
  // Bytes of the model's files.
  uint64_t weights() const { return weights_; }

 private:
  static std::string kind_of(const Admitted& request);
  std::vector<MemoryLimit> limits_beside(uint64_t held) const;

  const job::Job& base_;
  const std::vector<MemoryLimit> limits_;
  const uint64_t weights_;
  uint64_t held_ = 0;
  std::unordered_map<std::string, Lack> known_;
};

}  // namespace tessera::serve
