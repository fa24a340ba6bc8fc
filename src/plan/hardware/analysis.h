// The time of a list of operators on a machine, operator by operator and in total.
#pragma once

#include <optional>
#include <vector>

#include "plan/hardware/mapping.h"

namespace tessera::plan {

struct Exchange {
  double bytes = 0;                   // sent by a die for each repetition of the list
  int64_t messages = 0;               // one after the other
  double bandwidth = 0, latency = 0;  // of the link, bytes/s and s
};

struct MappedOperator {
  Operator each;
  Mapping mapping;
};

struct Analysis {
  std::vector<MappedOperator> operators;
  double list_seconds = 0;             // for the list once, without operators that do not fit
  double exchange_seconds = 0;         // between dies, for the list once
  std::vector<std::string> obstacles;  // names of the operators that do not fit

  // The total time of many repetitions of the list.
  double total(int64_t repetitions) const {
    return (list_seconds + exchange_seconds) * static_cast<double>(repetitions);
  }
};

// Operators run one after the other, followed by exchanges between dies. Equal operators are mapped once.
Analysis analyze(const std::vector<Operator>& operators, const Machine& machine, const std::string& dtype,
                 const std::optional<Exchange>& exchange = std::nullopt);

}  // namespace tessera::plan
