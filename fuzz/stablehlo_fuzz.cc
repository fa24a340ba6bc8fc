// Fuzzes the reader of programs in StableHLO, and the tables of what it accepts.
#include <cstdint>
#include <string_view>

#include "fuzz/check.h"
#include "plan/program_trace.h"
#include "plan/stablehlo_reader.h"
#include "plan/views.h"

namespace tessera {
namespace {

using fuzz::accepts;
using fuzz::require;

// The text is read by itself too, because a program that is followed may be refused late.
void run(std::string_view text) {
  plan::is_mlir(text);
  if (!accepts([&] { plan::read_stablehlo(text, "file"); })) return;
  plan::Trace trace;
  if (!accepts([&] { trace = plan::trace_program(text, "file", std::nullopt); })) return;
  const plan::RankTrace& rank = trace.ranks.front();
  require(!rank.events.empty() && trace.world_size >= 1, "a program does something");
  int64_t operations = 0, collectives = 0;
  for (const plan::OperationRow& row : plan::operation_rows(rank)) operations += row.count.run;
  for (const plan::CollectiveRow& row : plan::collective_rows(rank)) {
    collectives += row.count.run;
    require(row.sent.run >= 0 && row.received.run >= 0, "bytes are at least 0");
  }
  require(operations + collectives == static_cast<int64_t>(rank.events.size()),
          "tables hold every event once");
  for (const plan::FlopsRow& row : plan::flops_rows(rank))
    require(row.products.run >= 0 && row.elementwise.run >= 0, "FLOPs are at least 0");
  plan::pair_sizes(rank);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
