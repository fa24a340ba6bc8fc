#include "plan/calibration/calibrate.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <new>

#include "core/error.h"
#include "core/host.h"
#include "core/text.h"
#include "engine/observer.h"
#include "launch/signals.h"
#include "plan/calibration/probes.h"
#include "plan/calibration/stopwatch.h"
#include "plan/hardware/mapping.h"

namespace tessera::plan {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kKibi = 1024, kGibi = 1024 * 1024 * 1024;
// Only orders of magnitude, as in files made from data sheets; their effect on times is contained in the
// shares.
constexpr double kHopMicroseconds = 0.01, kDramMicroseconds = 0.1;
constexpr double kNear = 1.1;           // ratio of sizes that count as equal
constexpr double kShareOfRanks = 0.25;  // of the seconds
constexpr size_t kPasses = 2;
constexpr double kMostForProbe = 0.5, kLeastForProbe = 0.02;  // s
constexpr int64_t kDefaultTileBytes = 512 << 10, kDefaultCacheBytes = 32 << 20;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Further digits would be noise.
double rounded(double value) {
  return std::stod(fmt::format("{:.4g}", value));
}

std::string dtype_text(at::ScalarType dtype) {
  return dtype == at::kFloat ? "fp32" : dtype == at::kHalf ? "fp16" : "bf16";
}

// The best rates of a tile, by dtype.
struct Rates {
  std::map<std::string, double> gemm, vector;
};

Rates rates_of(const HostFigures& host, const std::vector<TimedWork>& timed) {
  Rates rates;
  const auto keep_best = [&](std::map<std::string, double>& best, const TimedWork& each, double operations) {
    const double rate = operations / each.seconds / static_cast<double>(host.threads);
    best[each.dtype] = std::max(best[each.dtype], rate);
  };
  for (const TimedWork& each : timed) {
    const Demand demand = demand_of(each.work);
    const WorkKind kind = work_kind(each.work);
    if (kind == WorkKind::kGemm) keep_best(rates.gemm, each, demand.gemm_operations);
    if (kind == WorkKind::kVector) keep_best(rates.vector, each, demand.vector_operations);
  }
  return rates;
}

OrderedJson rates_json(const std::map<std::string, double>& rates, double scale = kTera) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [dtype, rate] : rates) json[dtype] = rounded(rate / scale);
  return json;
}

// A share of operators of one size, in logarithms.
struct SharePoint {
  std::vector<double> size;
  double log_share = 0;
  int64_t count = 1;
};

bool are_near(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](double x, double y) { return std::max(x, y) <= kNear * std::min(x, y); });
}

// Operators of nearly the same size that differ in what they do with elements get one share, their geometric
// mean: a table cannot tell them apart.
OrderedJson efficiency_json(const Machine& machine, const std::vector<TimedWork>& timed) {
  std::map<std::pair<std::string, std::string>, std::vector<SharePoint>> tables;
  for (const TimedWork& each : timed) {
    const Mapping mapping = map_operator({{}, each.work}, machine, each.dtype);
    if (!mapping.fits()) continue;
    SharePoint point{size_of(each.work), std::log(mapping.latency / each.seconds)};
    std::vector<SharePoint>& table = tables[{share_name(each.work), each.dtype}];
    const auto near = std::find_if(table.begin(), table.end(),
                                   [&](const SharePoint& other) { return are_near(other.size, point.size); });
    if (near == table.end()) {
      table.push_back(std::move(point));
    } else {
      near->log_share += (point.log_share - near->log_share) / static_cast<double>(++near->count);
    }
  }
  OrderedJson json = OrderedJson::object();
  for (const auto& [of, table] : tables) {
    for (const SharePoint& each : table) {
      OrderedJson point = OrderedJson::array();
      for (const double size : each.size) point.push_back(rounded(size));
      point.push_back(rounded(std::exp(each.log_share)));
      json[of.first][of.second].push_back(std::move(point));
    }
  }
  return json;
}

OrderedJson sharing_json(const std::map<WorkKind, std::vector<double>>& sharing) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [kind, shares] : sharing) {
    for (const double share : shares) json[work_kind_name(kind)].push_back(rounded(share));
  }
  return json;
}

OrderedJson links_of_ranks(Link link) {
  if (link.measured.empty()) return OrderedJson::array();
  link.overlap = rounded(link.overlap);
  link.latency = rounded(link.latency);
  if (link.bandwidth) link.bandwidth = rounded(*link.bandwidth);
  for (auto& [name, rows] : link.measured) {
    for (auto& row : rows) row[2] = rounded(row[2]);
  }
  return links_json({link});
}

// The size of the first core's cache of this level, in bytes, or nothing if the kernel does not report it.
std::optional<int64_t> cache_size(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    std::ifstream level_file(folder + "level"), size_file(folder + "size"), type_file(folder + "type");
    int found = 0;
    int64_t kib = 0;
    std::string type;
    if (!(level_file >> found) || !(size_file >> kib) || !(type_file >> type)) continue;
    if (found == level && type != "Instruction") return kib << 10;
  }
  return std::nullopt;
}

// Bytes per second that a copy of this size reads and writes.
double copy_bandwidth(int64_t bytes, double seconds, int64_t threads) {
  const at::Tensor from = at::full({bytes / 4}, 0.5), to = at::empty_like(from);
  const std::vector<double> times = times_of([&] { to.copy_(from); }, seconds, clock_for(threads));
  return 2 * static_cast<double>(bytes) / typical(times, threads);
}

// Bytes per second of new memory of which the process touches every page.
double first_use_bandwidth(int64_t threads) {
  constexpr size_t kBytes = 256 << 20, kPage = 4096;
  const auto use = [] {
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    for (size_t at = 0; at < kBytes; at += kPage) static_cast<volatile char*>(memory)[at] = 1;
    ::munmap(memory, kBytes);
  };
  return static_cast<double>(kBytes) / typical(times_of(use, kMostForProbe, clock_for(threads)), threads);
}

double load_bandwidth(at::ScalarType dtype, int64_t threads) {
  const LoadingProbe probe = loading_probe(dtype);
  const std::vector<double> times = times_of(probe.run, kMostForProbe, clock_for(threads));
  return static_cast<double>(probe.bytes) / typical(times, threads);
}

// The measurements of a probe.
struct TimedProbe {
  std::string dtype;
  Work work;
  double bytes = 0;  // read and written
  std::vector<PacedTime> times;
};

// Times the probes in turns: as many as there is time for, but at least the typical ones. Each is timed
// twice, so that no single moment decides about an operation.
std::vector<TimedProbe> time_probes(const std::string& dtype, const std::vector<Probe>& probes,
                                    int64_t threads, double end) {
  const Clock clock = clock_for(threads);
  const std::function<double()> look = threads == 1 ? look_at_pace : [] { return 1.0; };
  std::vector<std::vector<PacedTime>> times(probes.size());
  size_t left = kPasses * probes.size();
  for (size_t pass = 0; pass < kPasses; ++pass) {
    for (size_t i = 0; i < probes.size(); ++i, --left) {
      const double seconds = end - wall_seconds();
      if (seconds <= 0 && (pass > 0 || i >= kAllWorkKinds.size())) break;
      const double budget =
          std::clamp(seconds / static_cast<double>(left) / 2, kLeastForProbe, kMostForProbe);
      const std::vector<PacedTime> more = paced_times_of(probes[i].prepare(at::kCPU), budget, clock, look);
      times[i].insert(times[i].end(), more.begin(), more.end());
    }
  }
  std::vector<TimedProbe> timed;
  for (size_t i = 0; i < probes.size() && !times[i].empty(); ++i) {
    const Work work = work_of(probes[i]);
    const double bytes = demand_of(work).elements * static_cast<double>(c10::elementSize(probes[i].dtype));
    timed.push_back({dtype, work, bytes, std::move(times[i])});
  }
  return timed;
}

// Converts all times to one pace, the average of the machine.
std::vector<TimedWork> at_usual_pace(const std::vector<TimedProbe>& probes, double dram_bandwidth,
                                     int64_t threads) {
  double sum = 0, count = 0;
  for (const TimedProbe& probe : probes) {
    for (const PacedTime& each : probe.times) sum += each.pace;
    count += static_cast<double>(probe.times.size());
  }
  std::vector<TimedWork> timed;
  for (const TimedProbe& probe : probes) {
    std::vector<double> times;
    for (const PacedTime& each : probe.times)
      times.push_back(each.at_pace(sum / count, probe.bytes / dram_bandwidth));
    timed.push_back({probe.dtype, probe.work, typical(std::move(times), threads)});
  }
  return timed;
}

// For all dtypes. Adds to `operations` the number of probes that were to be timed.
std::vector<TimedProbe> time_operations(const CalibrationOptions& options, int64_t cache_bytes,
                                        double deadline, const Say& say, int64_t& operations) {
  std::vector<TimedProbe> all;
  for (size_t i = 0; i < options.dtypes.size(); ++i) {
    const std::string name = dtype_text(options.dtypes[i]);
    const double begin = wall_seconds();
    const double end = begin + (deadline - begin) / static_cast<double>(options.dtypes.size() - i);
    const std::vector<Probe> probes = make_probes(options.dtypes[i], cache_bytes);
    operations += std::ssize(probes);
    say(fmt::format("{} in {}", counted(std::ssize(probes), "operation"), name));
    std::vector<TimedProbe> timed = time_probes(name, probes, options.threads, end);
    if (timed.size() < probes.size())
      say(
          fmt::format("no more: {} of {} operations had time, and estimates of others are poor; give it more "
                      "seconds, or a host that does nothing else",
                      timed.size(), probes.size()));
    std::move(timed.begin(), timed.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos)
      return printable(line.substr(colon + 2));
  }
  return "a processor without a name";
}

std::vector<at::ScalarType> host_dtypes() {
  std::vector<at::ScalarType> dtypes = {at::kFloat};
  if (cpu_has_bf16()) dtypes.push_back(at::kBFloat16);
  return dtypes;
}

OrderedJson machine_json(const HostFigures& host, const std::vector<TimedWork>& timed) {
  const Rates rates = rates_of(host, timed);
  OrderedJson json = {{"name", host.name},
                      {"source", host.source},
                      {"tiles", host.threads},
                      {"grid", {1, host.threads}},
                      {"sram_kib_per_tile", host.tile_bytes / kKibi},
                      {"noc_gb_per_s_per_tile", rounded(host.cache_bandwidth / kGiga)},
                      {"hop_latency_us", kHopMicroseconds},
                      {"dram_gb_per_s", rounded(host.dram_bandwidth / kGiga)},
                      {"dram_latency_us", kDramMicroseconds},
                      {"gemm_tflops_per_tile", rates_json(rates.gemm)},
                      {"vector_tops_per_tile", rates_json(rates.vector)},
                      {"links", links_of_ranks(host.of_ranks.link)}};
  json["efficiency"] = efficiency_json(read_machine(JsonConfig(json, "calibration")), timed);
  if (host.memory_bytes > 0)
    json["memory_gib"] = rounded(host.memory_bytes / kGibi / static_cast<double>(host.ranks));
  if (!host.load_rates.empty()) json["load_gb_per_s"] = rates_json(host.load_rates, kGiga);
  if (host.first_use_rate > 0) json["first_use_gb_per_s"] = rounded(host.first_use_rate / kGiga);
  if (!host.of_ranks.sharing.empty()) json["sharing"] = sharing_json(host.of_ranks.sharing);
  json["calibration"] = {{"version", TESSERA_VERSION},
                         {"threads", host.threads},
                         {"ranks", host.ranks},
                         {"operations", timed.size()},
                         {"all_operations", std::max(host.operations, std::ssize(timed))}};
  return json;
}

OrderedJson calibrate(const CalibrationOptions& options, const Say& say) {
  const c10::InferenceMode inference_mode;
  const double begin = wall_seconds();
  HostFigures host;
  const std::string processor = processor_name();
  host.threads = options.threads;
  host.ranks = options.ranks;
  host.name = fmt::format("{}, {} a rank", processor, counted(options.threads, "thread"));
  host.source = fmt::format("measured by tessera {} on {}", TESSERA_VERSION, processor);
  const int64_t tile = cache_size(2).value_or(kDefaultTileBytes);
  const int64_t cache = std::max(cache_size(3).value_or(kDefaultCacheBytes), tile);
  host.tile_bytes = static_cast<double>(tile);
  host.memory_bytes = static_cast<double>(total_memory());
  launch::finish_before_end("this measurement");
  host.of_ranks = measure_ranks(options.ranks, options.threads, options.dtypes.back(), cache,
                                options.seconds * kShareOfRanks, say);
  // The launcher of ranks no longer waits for signals.
  if (launch::interrupted()) throw engine::Cancelled();
  launch::end_at_first_interrupt();
  set_threads(static_cast<int>(options.threads));
  host.cache_bandwidth = copy_bandwidth(tile / 4, kLeastForProbe, options.threads);
  host.dram_bandwidth = copy_bandwidth(4 * cache, kMostForProbe, options.threads);
  for (const at::ScalarType dtype : options.dtypes) {
    if (dtype == at::kBFloat16) continue;  // layers of text encoders are views of the file
    host.load_rates[dtype_text(dtype)] = load_bandwidth(dtype, options.threads);
  }
  host.first_use_rate = first_use_bandwidth(options.threads);
  const std::vector<TimedProbe> timed =
      time_operations(options, cache, begin + options.seconds, say, host.operations);
  return machine_json(host, at_usual_pace(timed, host.dram_bandwidth, options.threads));
}

}  // namespace tessera::plan
