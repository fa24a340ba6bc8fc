// Fuzzes machine files: one that is accepted maps operators to times that are finite and in line with its
// rates.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "fuzz/check.h"
#include "plan/hardware/mapping.h"

namespace tessera {
namespace {

void map(const plan::Machine& machine, const plan::Work& work) {
  for (const auto& [dtype, rate] : machine.gemm_rates) {
    const plan::Mapping mapping = plan::map_operator({"operator", work}, machine, dtype);
    fuzz::require(mapping.fits() == !mapping.split.empty(), "an operator has a split or an obstacle");
    if (!mapping.fits()) continue;
    fuzz::require(std::isfinite(mapping.latency) && mapping.latency > 0, "a time is finite");
    fuzz::require(mapping.utilization <= 1 + 1e-6, "no machine is faster than its rates");
  }
}

void run(std::string_view text) {
  plan::Machine machine;
  if (!fuzz::accepts([&] { machine = plan::read_machine(JsonConfig(parse_json(text, "file"), "file")); }))
    return;
  fuzz::require(machine.grid_rows * machine.grid_columns == machine.tiles, "the tiles are a grid");
  map(machine, plan::VectorWork{.rows = 100, .width = 72, .operations_per_element = 4, .weights = 72});
  map(machine, plan::GemmWork{.rows = 100, .inner = 72, .columns = 96, .activation_operations = 7});
  map(machine, plan::AttentionWork{.batch = 2, .heads = 3, .queries = 50, .keys = 60, .head_dim = 24});
  fuzz::accepts([&] { plan::find_link(machine, std::nullopt); });
  fuzz::accepts([&] { plan::find_link(machine, "pcie"); }, /*has_request=*/true);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
