// The costs of a trace's operations on a machine, from the mappers of hardware/mapping.h. Everything that
// estimates the time of a trace uses these costs.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/hardware/mapping.h"
#include "plan/trace.h"

namespace tessera::plan {

// The operators that an operation becomes on a machine whose elements take `element_bytes`. Layers are
// products of matrices, and convolutions are equivalent products; attention stays attention; everything else
// is a vector operator over the bytes of the operation, in rows of its largest tensor. T5's bias of scores is
// an additional vector operator. Returns nothing for an operation without elements.
std::vector<Work> works_of(const OperationEvent& operation, int64_t element_bytes);

struct MappedWork {
  std::string dtype;  // the one in which the machine runs it
  Work work;
  Mapping mapping;
};

// Maps each kind of work once. An operation runs in its own dtype, or in the nearest that the machine has; a
// product and the activation of its output are one operator.
class OperationCosts {
 public:
  explicit OperationCosts(Machine machine) : machine_(std::move(machine)) {}

  const Machine& machine() const { return machine_; }
  // The operators of an event: none for an event that is not an operation, or for an activation that its
  // product applies. They live as long as this object. Operators that fit in no way take no time.
  std::vector<const MappedWork*> operators(const RankTrace& rank, size_t event);
  // A lower bound for any machine with these rates: the time to compute, or that to read and write, whichever
  // is longer.
  double least_seconds(const MappedWork& mapped) const;

  const MappedWork& mapped(const Work& work, const std::string& dtype);

 private:
  Machine machine_;
  std::map<std::pair<std::string, Work>, MappedWork> mapped_;
};

}  // namespace tessera::plan
