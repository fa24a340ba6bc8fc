// The time of a rank of a trace on a machine, operation by operation, by the mappers of hardware/mapping.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/hardware/mapping.h"
#include "plan/trace.h"

namespace tessera::plan {

// What an operation is for a machine whose elements take `element_bytes`. Layers are products of matrices,
// and convolutions are the products that they are; attention is attention; all else is a vector operator over
// the bytes of the operation. T5's bias of scores is one more vector operator. Nothing for an operation
// without elements.
std::vector<Work> works_of(const OperationEvent& operation, int64_t element_bytes);

struct TracedOperator {
  Phase phase = Phase::kDenoise;
  std::string name, role;  // of the operation; the role with numbers replaced by *
  std::string dtype;       // in which the machine runs it
  Work work;
  int64_t count = 0;  // in the whole run
  Mapping mapping;

  double seconds() const { return mapping.latency * static_cast<double>(count); }  // 0 if nothing fits
};

struct TracedCollective {
  Phase phase = Phase::kDenoise;
  std::string axis, name;
  int64_t count = 0;   // in the whole run
  double bytes = 0;    // of all of them, sent or received, whichever is more
  double seconds = 0;  // of all of them
};

struct TraceAnalysis {
  std::vector<TracedOperator> operators;      // in the order in which they first run
  std::vector<TracedCollective> collectives;  // likewise
  // Seconds of the whole run.
  double computing(Phase phase) const;
  double sending(Phase phase) const;
  double total() const;  // one after the other, as if nothing overlapped
};

// Whether the rank exchanges anything.
bool has_collectives(const RankTrace& rank);

// A run of `steps` steps: the last that was traced stands for those after it. Operations run in their own
// dtype, or the nearest that the machine has. A product and the activation of what it writes are one
// operator. A collective takes the link's latency and the time of its bytes; `link` must have a bandwidth if
// the rank has collectives. `options.dtype` does not count.
TraceAnalysis analyze_trace(const Trace& trace, const RankTrace& rank, int64_t steps, const Machine& machine,
                            const MapOptions& options, const std::optional<Link>& link);

}  // namespace tessera::plan
