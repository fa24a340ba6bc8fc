// Which requests cannot have the memory of this machine, before they become jobs: the kernel would end the
// ranks that try.
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

// All members but look() are for one thread.
class MemoryGate {
 public:
  // `base` is that of admit(), and must outlive this. Of the limits what cannot be exceeded counts, not what
  // is free.
  MemoryGate(const job::Job& base, std::vector<MemoryLimit> limits);

  // What a request lacks, in words; empty if it lacks nothing.
  using Lack = std::string;
  // Nothing where it takes a look().
  std::optional<Lack> known(const Admitted& request) const;
  // Traces a run, which takes long.
  Lack look(const Admitted& request) const;
  // Requests of this kind are known from now on.
  void keep(const Admitted& request, const Lack& lack);

 private:
  static std::string kind_of(const Admitted& request);

  const job::Job& base_;
  const std::vector<MemoryLimit> limits_;
  const uint64_t weights_;
  std::unordered_map<std::string, Lack> known_;
};

}  // namespace tessera::serve
