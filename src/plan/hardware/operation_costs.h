// What the operations of a trace take on a machine, by the mappers of hardware/mapping.h. Whatever estimates
// the time of a trace does so with these costs.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/hardware/mapping.h"
#include "plan/trace.h"

namespace tessera::plan {

// What an operation is for a machine whose elements take `element_bytes`. Layers are products of matrices,
// and convolutions are the products that they are; attention is attention; all else is a vector operator over
// the bytes of the operation, in rows of its largest tensor. T5's bias of scores is one more vector operator.
// Nothing for an operation without elements.
std::vector<Work> works_of(const OperationEvent& operation, int64_t element_bytes);

struct MappedWork {
  std::string dtype;  // in which the machine runs it
  Work work;
  Mapping mapping;
};

// Maps each kind of work once. An operation runs in its own dtype, or the nearest that the machine has; a
// product and the activation of what it writes are one operator.
class OperationCosts {
 public:
  explicit OperationCosts(Machine machine) : machine_(std::move(machine)) {}

  const Machine& machine() const { return machine_; }
  // The operators of an event: none of one that is no operation, and of an activation that its product
  // applies. They last as long as this object. Those that fit in no way take no time.
  std::vector<const MappedWork*> operators(const RankTrace& rank, size_t event);
  // The time below which no machine with these rates can do it: that of what it must compute or of what it
  // must read and write, whichever is longer.
  double least_seconds(const MappedWork& mapped) const;

  const MappedWork& mapped(const Work& work, const std::string& dtype);

 private:
  Machine machine_;
  std::map<std::pair<std::string, Work>, MappedWork> mapped_;
};

}  // namespace tessera::plan
