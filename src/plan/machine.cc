#include "plan/machine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/text.h"

namespace tessera::plan {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6, kKibi = 1024;
constexpr int64_t kMostTiles = 1 << 20;
constexpr double kLeastRate = 1e-6;  // of GB/s, TFLOP/s and 10^12 operations/s

const std::vector<std::string>& dtypes() {
  static const std::vector<std::string> names = {"fp32", "fp16", "bf16", "fp8"};
  return names;
}

// `what` is the kind of name in messages.
void refuse_unknown_keys(const JsonConfig& config, const std::vector<std::string>& known,
                         const std::string& what) {
  for (const auto& [key, value] : config.values().items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const auto nearest = nearest_word(key, known);
    input_error(config.where(), "'{}' is not a {}{}", printable(key), what,
                nearest ? fmt::format("; did you mean '{}'?", *nearest)
                        : fmt::format("; there are {}", fmt::join(known, ", ")));
  }
}

double positive_number(const JsonConfig& config, const std::string& key, const std::string& unit) {
  const double value = config.number(key);
  if (!(value > 0) || std::isinf(value)) config.fail(key, "a positive number of " + unit);
  return value;
}

// Below the least, times of large models would be beyond any number.
double rate(const JsonConfig& config, const std::string& key, const std::string& unit) {
  const double value = positive_number(config, key, unit);
  if (value < kLeastRate) config.fail(key, fmt::format("at least {} {}", kLeastRate, unit));
  return value;
}

std::string text_of(const JsonConfig& config, const std::string& key) {
  const std::string value = config.string(key);
  if (value.empty()) config.fail(key, "a text");
  return printable(value);
}

std::map<std::string, double> rates_of(const JsonConfig& config, const std::string& key,
                                       const std::string& unit) {
  if (!config.has(key)) config.fail(key, "an object with a rate for each dtype");
  const JsonConfig object = config.object(key);
  refuse_unknown_keys(object, dtypes(), "dtype");
  std::map<std::string, double> result;
  for (const auto& [dtype, value] : object.values().items())
    result[dtype] = rate(object, dtype, unit) * kTera;
  if (result.empty()) config.fail(key, "an object with a rate for each dtype");
  return result;
}

Link read_link(const JsonConfig& config) {
  refuse_unknown_keys(config, {"kind", "gb_per_s", "latency_us"}, "key of a link");
  Link link;
  link.kind = text_of(config, "kind");
  const auto is_null = [&](const std::string& key) {
    const Json* const value = config.value(key);
    return value && value->is_null();
  };
  if (!is_null("gb_per_s"))
    link.bandwidth = rate(config, "gb_per_s", "GB/s, or null where only the user knows it") * kGiga;
  if (!is_null("latency_us"))
    link.latency =
        positive_number(config, "latency_us", "microseconds, or null where it is unknown") * kMicro;
  return link;
}

std::vector<Link> read_links(const JsonConfig& config) {
  const Json* const list = config.value("links");
  if (!list || !list->is_array()) config.fail("links", "a list of links between devices");
  std::vector<Link> links;
  for (const Json& each : *list) {
    const JsonConfig entry(each, fmt::format("{}: links[{}]", config.where(), links.size()));
    Link link = read_link(entry);
    if (std::any_of(links.begin(), links.end(), [&](const Link& other) { return other.kind == link.kind; }))
      entry.fail("kind", "a kind that no link before it has");
    links.push_back(std::move(link));
  }
  return links;
}

}  // namespace

int64_t dtype_bytes(const std::string& dtype) {
  if (dtype == "fp32") return 4;
  if (dtype == "fp16" || dtype == "bf16") return 2;
  return dtype == "fp8" ? 1 : 0;
}

Machine read_machine(const JsonConfig& config) {
  refuse_unknown_keys(
      config,
      {"name", "source", "tiles", "grid", "sram_kib_per_tile", "noc_gb_per_s_per_tile", "hop_latency_us",
       "dram_gb_per_s", "dram_latency_us", "gemm_tflops_per_tile", "vector_tops_per_tile", "links"},
      "key of a machine");
  Machine machine;
  machine.where = config.where();
  machine.name = text_of(config, "name");
  text_of(config, "source");
  machine.tiles = config.count("tiles", kMostTiles);
  const std::vector<int64_t> grid = config.integers("grid");
  const bool is_grid = grid.size() == 2 && std::all_of(grid.begin(), grid.end(), [](int64_t size) {
                         return size >= 1 && size <= kMostTiles;
                       });
  if (!is_grid || grid[0] * grid[1] != machine.tiles)
    config.fail("grid", fmt::format("[rows, columns] of {} tiles", machine.tiles));
  machine.grid_rows = grid[0];
  machine.grid_columns = grid[1];
  machine.sram_bytes = positive_number(config, "sram_kib_per_tile", "KiB") * kKibi;
  machine.noc_bandwidth = rate(config, "noc_gb_per_s_per_tile", "GB/s") * kGiga;
  machine.hop_latency = positive_number(config, "hop_latency_us", "microseconds") * kMicro;
  machine.dram_bandwidth = rate(config, "dram_gb_per_s", "GB/s") * kGiga;
  machine.dram_latency = positive_number(config, "dram_latency_us", "microseconds") * kMicro;
  machine.gemm_rates = rates_of(config, "gemm_tflops_per_tile", "TFLOP/s");
  machine.vector_rates = rates_of(config, "vector_tops_per_tile", "10^12 operations/s");
  for (const std::string& dtype : dtypes()) {
    if (machine.gemm_rates.contains(dtype) != machine.vector_rates.contains(dtype))
      config.fail(machine.gemm_rates.contains(dtype) ? "vector_tops_per_tile" : "gemm_tflops_per_tile",
                  fmt::format("an object with {}, which the other rate has", dtype));
  }
  machine.links = read_links(config);
  return machine;
}

Machine read_machine(const std::filesystem::path& path) {
  return read_machine(JsonConfig::read(path));
}

void require_dtype(const Machine& machine, const std::string& dtype) {
  if (machine.gemm_rates.contains(dtype)) return;
  std::vector<std::string> known;
  for (const auto& [name, rate] : machine.gemm_rates) known.push_back(name);
  input_error(machine.where, "'gemm_tflops_per_tile' has no {}; it has {}", dtype, fmt::join(known, ", "));
}

std::string nearest_dtype(const Machine& machine, const std::string& dtype) {
  static const std::vector<std::string> kOrder = {"bf16", "fp16", "fp32", "fp8"};
  if (machine.gemm_rates.contains(dtype)) return dtype;
  const auto found = std::find_if(kOrder.begin(), kOrder.end(),
                                  [&](const std::string& each) { return machine.gemm_rates.contains(each); });
  TESSERA_CHECK(found != kOrder.end(), "{} has no rates", machine.name);
  return *found;
}

const Link& find_link(const Machine& machine, const std::optional<std::string>& kind) {
  if (machine.links.empty()) input_error(machine.where, "'links' is empty, but devices send to each other");
  std::vector<std::string> kinds;
  for (const Link& link : machine.links) {
    if (!kind || link.kind == *kind) return link;
    kinds.push_back(link.kind);
  }
  usage_error(field("link"), "'{}' is none of the links of {}: {}", printable(*kind), machine.name,
              fmt::join(kinds, ", "));
}

}  // namespace tessera::plan
