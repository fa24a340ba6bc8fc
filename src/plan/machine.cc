#include "plan/machine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/text.h"

namespace tessera::plan {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6, kKibi = 1024, kGibi = 1024 * 1024 * 1024;
constexpr double kMostMicroseconds = 1e9, kMostSpeed = 1e6;
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

// Below this rate, the times of large models would exceed any number.
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
                                       const std::string& unit, double scale) {
  if (!config.has(key)) config.fail(key, "an object with a rate for each dtype");
  const JsonConfig object = config.object(key);
  refuse_unknown_keys(object, dtypes(), "dtype");
  std::map<std::string, double> result;
  for (const auto& [dtype, value] : object.values().items())
    result[dtype] = rate(object, dtype, unit) * scale;
  if (result.empty()) config.fail(key, "an object with a rate for each dtype");
  return result;
}

// Numbers of 0 < share <= most.
std::vector<double> shares_of(const JsonConfig& config, const std::string& key, double most) {
  if (!config.has(key)) return {};
  std::vector<double> shares = config.numbers(key);
  const bool are_shares = !shares.empty() && std::all_of(shares.begin(), shares.end(), [&](double share) {
    return share > 0 && share <= most;
  });
  if (!are_shares) config.fail(key, fmt::format("a list of numbers above 0, at most {}", most));
  return shares;
}

std::map<WorkKind, std::vector<double>> sharing_of(const JsonConfig& config) {
  std::map<WorkKind, std::vector<double>> sharing;
  const Json* const value = config.value("sharing");
  if (value == nullptr || !value->is_object()) {
    const std::vector<double> shares = shares_of(config, "sharing", 1);
    for (const WorkKind kind : kAllWorkKinds) {
      if (!shares.empty()) sharing[kind] = shares;
    }
    return sharing;
  }
  const JsonConfig object = config.object("sharing");
  std::vector<std::string> kinds(kAllWorkKinds.size());
  std::transform(kAllWorkKinds.begin(), kAllWorkKinds.end(), kinds.begin(), work_kind_name);
  refuse_unknown_keys(object, kinds, "kind of work");
  for (const WorkKind kind : kAllWorkKinds) {
    if (object.has(work_kind_name(kind))) sharing[kind] = shares_of(object, work_kind_name(kind), 1);
  }
  return sharing;
}

void read_what_no_data_sheet_tells(const JsonConfig& config, Machine& machine) {
  machine.efficiency = Efficiency::read(config.object("efficiency"));
  machine.launch = config.number_within("launch_us", 0, kMostMicroseconds, 0) * kMicro;
  if (config.has("memory_gib")) machine.memory_bytes = positive_number(config, "memory_gib", "GiB") * kGibi;
  if (config.has("load_gb_per_s")) machine.load_rates = rates_of(config, "load_gb_per_s", "GB/s", kGiga);
  if (config.has("first_use_gb_per_s"))
    machine.first_use_rate = rate(config, "first_use_gb_per_s", "GB/s") * kGiga;
  machine.sharing = sharing_of(config);
  machine.speeds = shares_of(config, "speeds", kMostSpeed);
}

}  // namespace

int64_t dtype_bytes(const std::string& dtype) {
  if (dtype == "fp32") return 4;
  if (dtype == "fp16" || dtype == "bf16") return 2;
  return dtype == "fp8" ? 1 : 0;
}

Machine read_machine(const JsonConfig& config) {
  if (!config.has("tiles") && !config.has("gemm_tflops_per_tile") && !config.has("vector_tops_per_tile"))
    input_error(config.where(),
                "is no machine file: it has no 'tiles' and no rates of them; give the name of a machine that "
                "ships, or what tessera calibrate wrote");
  refuse_unknown_keys(config,
                      {"name",
                       "source",
                       "tiles",
                       "grid",
                       "sram_kib_per_tile",
                       "noc_gb_per_s_per_tile",
                       "hop_latency_us",
                       "dram_gb_per_s",
                       "dram_latency_us",
                       "gemm_tflops_per_tile",
                       "vector_tops_per_tile",
                       "links",
                       "efficiency",
                       "launch_us",
                       "memory_gib",
                       "load_gb_per_s",
                       "first_use_gb_per_s",
                       "sharing",
                       "speeds",
                       "calibration",
                       "device"},
                      "key of a machine");
  Machine machine;
  machine.where = config.where();
  machine.name = text_of(config, "name");
  text_of(config, "source");
  machine.device = config.string("device", "cpu");
  if (machine.device != "cpu" && machine.device != "cuda") config.fail("device", "cpu or cuda");
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
  machine.gemm_rates = rates_of(config, "gemm_tflops_per_tile", "TFLOP/s", kTera);
  machine.vector_rates = rates_of(config, "vector_tops_per_tile", "10^12 operations/s", kTera);
  for (const std::string& dtype : dtypes()) {
    if (machine.gemm_rates.contains(dtype) != machine.vector_rates.contains(dtype))
      config.fail(machine.gemm_rates.contains(dtype) ? "vector_tops_per_tile" : "gemm_tflops_per_tile",
                  fmt::format("an object with {}, which the other rate has", dtype));
  }
  machine.links = read_links(config);
  read_what_no_data_sheet_tells(config, machine);
  machine.text = config.values();
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

double Machine::shared_speed(WorkKind kind, int64_t devices) const {
  const auto shares = sharing.find(kind);
  if (shares == sharing.end() || devices < 1) return 1;
  return shares->second[std::min(static_cast<size_t>(devices), shares->second.size()) - 1];
}

double Machine::speed(int64_t rank) const {
  return speeds.empty() ? 1 : speeds[std::min(static_cast<size_t>(rank), speeds.size() - 1)];
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
