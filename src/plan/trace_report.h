// The page of `tessera analyze report`: tables and plots of traces, in a single file that loads nothing else.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "plan/trace.h"

namespace tessera::plan {

struct NamedTrace {
  std::string name;  // the file
  Trace trace;
};

// If a machine is given, also shows times: a roofline, the time of each role, and a timeline of the ranks.
// Throws Error for a machine without rates for the dtype of a trace.
std::string report_html(const std::vector<NamedTrace>& traces, const std::optional<Machine>& machine);

}  // namespace tessera::plan
