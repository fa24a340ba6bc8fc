// Fuzzes the reader of traces, and the tables of what it accepts.
#include <cstdint>
#include <string_view>

#include "fuzz/check.h"
#include "plan/trace.h"
#include "plan/views.h"

namespace tessera {
namespace {

using fuzz::accepts;
using fuzz::require;

void run(std::string_view text) {
  plan::Trace trace;
  if (!accepts([&] { trace = plan::read_trace(text, "file"); })) return;
  const std::string written = plan::write_trace(trace);
  require(plan::write_trace(plan::read_trace(written, "file")) == written,
          "a trace survives writing and reading");
  for (const plan::RankTrace& rank : trace.ranks) {
    int64_t operations = 0;
    for (const plan::OperationRow& row : plan::operation_rows(rank)) operations += row.count;
    int64_t collectives = 0;
    for (const plan::CollectiveRow& row : plan::collective_rows(rank)) collectives += row.count;
    require(operations + collectives <= static_cast<int64_t>(rank.events.size()),
            "tables hold every event once");
    plan::flops_rows(rank);
    plan::memory_rows(rank);
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
