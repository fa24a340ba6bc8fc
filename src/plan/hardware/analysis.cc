#include "plan/hardware/analysis.h"

#include <algorithm>

namespace tessera::plan {

Analysis analyze(const std::vector<Operator>& operators, const Machine& machine, const std::string& dtype,
                 const std::optional<Exchange>& exchange) {
  Analysis analysis;
  analysis.operators.reserve(operators.size());
  for (const Operator& each : operators) {
    const auto equal =
        std::find_if(analysis.operators.begin(), analysis.operators.end(),
                     [&](const MappedOperator& other) { return other.each.work == each.work; });
    const Mapping mapping =
        equal != analysis.operators.end() ? equal->mapping : map_operator(each, machine, dtype);
    analysis.operators.push_back({each, mapping});
    if (mapping.fits()) {
      analysis.list_seconds += mapping.latency * static_cast<double>(each.count);
    } else {
      analysis.obstacles.push_back(each.name);
    }
  }
  if (exchange)
    analysis.exchange_seconds =
        exchange->bytes / exchange->bandwidth + static_cast<double>(exchange->messages) * exchange->latency;
  return analysis;
}

}  // namespace tessera::plan
