#include "core/host.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <cpuinfo.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace tessera {
namespace {

// An instruction set, and its name in each library's environment variable.
struct Cap {
  Isa isa;
  const char *name, *aten, *onednn, *mkl;
};

// MKL follows its variable on Intel's processors; on AMD's it uses at most AVX2 in any case (seen with MKL
// 2024.2 on Zen 5). There is no cap below AVX2, because oneDNN 3.12's SSE4.1 convolutions crash with a
// segmentation fault.
constexpr Cap kCaps[] = {
    {Isa::kAvx2, "avx2", "avx2", "AVX2", "AVX2"},
    {Isa::kAvx512, "avx512", "avx512", "AVX512_CORE", "AVX512"},
    {Isa::kAvx512Bf16, "avx512_bf16", "avx512", "AVX512_CORE_BF16", "AVX512"},
};

// Returns nullptr if no cap is set.
const Cap* wanted_cap() {
  const char* const value = std::getenv("TESSERA_MAX_ISA");
  if (!value) return nullptr;
  for (const Cap& cap : kCaps) {
    if (std::string_view(value) == cap.name) return &cap;
  }
  usage_error("TESSERA_MAX_ISA", "expected avx2, avx512 or avx512_bf16, got '{}'", value);
}

Isa processor_isa() {
  if (!cpuinfo_initialize() || !cpuinfo_has_x86_avx2() || !cpuinfo_has_x86_fma3() || !cpuinfo_has_x86_f16c())
    return Isa::kBaseline;
  if (!cpuinfo_has_x86_avx512f() || !cpuinfo_has_x86_avx512bw() || !cpuinfo_has_x86_avx512cd() ||
      !cpuinfo_has_x86_avx512dq() || !cpuinfo_has_x86_avx512vl())
    return Isa::kAvx2;
  if (!cpuinfo_has_x86_avx512bf16()) return Isa::kAvx512;
  return cpuinfo_has_x86_amx_bf16() ? Isa::kAmx : Isa::kAvx512Bf16;
}

// The attributes with which OpenMP would start a thread.
struct Attributes {
  Attributes() {
    ::pthread_attr_init(&value);
    if (const size_t bytes = stack_bytes()) ::pthread_attr_setstacksize(&value, bytes);
  }
  ~Attributes() { ::pthread_attr_destroy(&value); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  // Reads the size in the environment, in KiB or with a unit. Returns 0 if there is none.
  static size_t stack_bytes() {
    for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
      const char* const text = std::getenv(name);
      if (!text) continue;
      char* unit = nullptr;
      const size_t count = std::strtoull(text, &unit, 10);
      while (std::isspace(static_cast<unsigned char>(*unit)) != 0) ++unit;
      const size_t power =
          *unit == '\0' ? 1 : std::string_view("bkmg").find(static_cast<char>(std::tolower(*unit)));
      return power < 4 ? count << (10 * power) : 0;
    }
    return 0;
  }

  pthread_attr_t value;
};

void* wait_for_end(void* ends) {
  static_cast<const std::atomic<bool>*>(ends)->wait(false);
  return nullptr;
}

// Returns how many of `wanted` threads, this one included, the system starts. OpenMP ends the program if it
// cannot start them all.
int startable_threads(int wanted) {
  const Attributes attributes;
  std::atomic<bool> ends = false;
  std::vector<pthread_t> others;
  for (pthread_t other; static_cast<int>(others.size()) + 1 < wanted; others.push_back(other)) {
    if (::pthread_create(&other, &attributes.value, wait_for_end, &ends) != 0) break;
  }
  ends = true;
  ends.notify_all();
  for (const pthread_t other : others) ::pthread_join(other, nullptr);
  return static_cast<int>(others.size()) + 1;
}

int team_size() {
  int size = 1;
#ifdef _OPENMP
#pragma omp parallel
#pragma omp single
  size = omp_get_num_threads();
#endif
  return size;
}

}  // namespace

Isa cpu_isa() {
  static const Isa isa = [] {
    const Cap* const cap = wanted_cap();
    return cap ? std::min(cap->isa, processor_isa()) : processor_isa();
  }();
  return isa;
}

bool cpu_has_bf16() {
  static const bool arm = cpuinfo_initialize() && cpuinfo_has_arm_bf16();
  return arm || cpu_isa() >= Isa::kAvx512Bf16;
}

void cap_libraries() {
  const Cap* const cap = wanted_cap();
  // ATen does not check that the processor supports what its variable names; it would crash with an illegal
  // instruction.
  if (!cap || cap->isa >= processor_isa()) return;
  setenv("ATEN_CPU_CAPABILITY", cap->aten, 1);
  setenv("ONEDNN_MAX_CPU_ISA", cap->onednn, 1);
  setenv("MKL_ENABLE_INSTRUCTIONS", cap->mkl, 1);
}

void make_first_calls() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, dtype);
      for (const auto function :
           {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc, at::erfinv, at::exp, at::log, at::log10,
            at::log2, at::sin, at::sqrt, at::tan, at::tanh, at::trunc})
        function(x);
    }
  });
}

int set_threads(int wanted) {
#ifdef _OPENMP
  omp_set_dynamic(0);
#endif
  at::set_num_threads(startable_threads(wanted));
  if (const int team = team_size(); team < at::get_num_threads()) at::set_num_threads(team);
  return at::get_num_threads();
}

ComputesAlone::ComputesAlone() : before_(at::get_num_threads()) {
  at::set_num_threads(1);
}

ComputesAlone::~ComputesAlone() {
  at::set_num_threads(before_);
}

namespace {

namespace fs = std::filesystem;

std::optional<uint64_t> parse(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;  // "max", for example
  return number;
}

// Returns the number in a file that contains nothing else.
std::optional<uint64_t> number_of(const fs::path& file) {
  std::string text;
  std::ifstream(file) >> text;
  return parse(text);
}

// Returns the numbers of a file of lines "name number", or "name: number kB" (which are kept as they are).
std::map<std::string, uint64_t> numbers_of(const fs::path& file) {
  std::map<std::string, uint64_t> numbers;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::string name, number;
    std::istringstream(line) >> name >> number;
    if (const auto value = parse(number)) numbers[name] = *value;
  }
  return numbers;
}

uint64_t plus(uint64_t a, uint64_t b) {
  return a > kUnlimited - b ? kUnlimited : a + b;
}

uint64_t minus(uint64_t a, uint64_t b) {
  return a == kUnlimited ? a : a - std::min(a, b);
}

struct Machine {
  uint64_t total, swap, available;
};

Machine machine_of(const fs::path& root) {
  std::map<std::string, uint64_t> numbers = numbers_of(root / "proc/meminfo");
  if (!numbers.contains("MemTotal:")) return {kUnlimited, 0, kUnlimited};
  constexpr uint64_t kKilobyte = 1024;
  const uint64_t total = numbers["MemTotal:"] * kKilobyte;
  const bool tells = numbers.contains("MemAvailable:");
  return {total, numbers["SwapTotal:"] * kKilobyte, tells ? numbers["MemAvailable:"] * kKilobyte : total};
}

// How a version of control groups names its files.
struct Version {
  const char* type;        // of the file system
  const char* controller;  // in /proc/self/cgroup; version 2 has none
  const char* most;
  const char* used;
  std::vector<const char*> reclaimable;  // in memory.stat
  const char* high;                      // beyond it, a group is slowed down; may be nullptr
  const char* events;                    // counts the processes that the kernel has killed
};

const std::vector<Version>& versions() {
  static const std::vector<Version> both = {{"cgroup2",
                                             "",
                                             "memory.max",
                                             "memory.current",
                                             {"inactive_file", "active_file"},
                                             "memory.high",
                                             "memory.events"},
                                            {"cgroup",
                                             "memory",
                                             "memory.limit_in_bytes",
                                             "memory.usage_in_bytes",
                                             {"total_inactive_file", "total_active_file"},
                                             nullptr,
                                             "memory.oom_control"}};
  return both;
}

bool contains_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Returns the path of this process's group in the hierarchy, from /proc/self/cgroup.
std::optional<std::string> group_of(const fs::path& root, const Version& version) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it =
        *version.controller == '\0' ? controllers.empty() : contains_word(controllers, version.controller);
    if (is_it) return line.substr(second + 1);
  }
  return std::nullopt;
}

struct Mount {
  std::string group;  // the part of the hierarchy that is mounted
  fs::path folder;    // where
};

// Reads a line of /proc/self/mountinfo: "31 23 0:28 /group /folder rw,relatime - cgroup cgroup rw,memory".
std::optional<Mount> mount_of(const fs::path& root, const Version& version) {
  std::ifstream lines(root / "proc/self/mountinfo");
  for (std::string line; std::getline(lines, line);) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::string skipped, group, folder, type, source, options;
    std::istringstream(line) >> skipped >> skipped >> skipped >> group >> folder;
    std::istringstream(line.substr(separator + 3)) >> type >> source >> options;
    const bool has_controller = *version.controller == '\0' || contains_word(options, version.controller);
    if (type == version.type && has_controller) return Mount{group, root / fs::path(folder).relative_path()};
  }
  return std::nullopt;
}

// Returns the group relative to the mounted part. In a container, the hierarchy may be mounted from the
// container's own group on while the path of the process is relative to the host, or vice versa.
fs::path within(const Mount& mount, const std::string& group) {
  const fs::path relative = fs::path(group).lexically_relative(mount.group);
  const bool is_below = !relative.empty() && *relative.begin() != "..";
  return is_below ? relative : fs::path(group).relative_path();
}

void add_groups(const fs::path& root, const Machine& machine, const Version& version,
                std::vector<MemoryLimit>& limits) {
  const std::optional<std::string> own = group_of(root, version);
  const std::optional<Mount> mount = mount_of(root, version);
  if (!own || !mount) return;
  // The limits of all groups around a nested group apply to it too.
  for (fs::path group = within(*mount, *own).lexically_normal();; group = group.parent_path()) {
    const fs::path folder = mount->folder / group;
    const uint64_t most = number_of(folder / version.most).value_or(kUnlimited);
    const uint64_t high = version.high ? number_of(folder / version.high).value_or(kUnlimited) : kUnlimited;
    if (std::min(most, high) < machine.total) {  // version 1 writes a huge number for no limit
      uint64_t used = number_of(folder / version.used).value_or(0);
      std::map<std::string, uint64_t> statistics = numbers_of(folder / "memory.stat");
      for (const char* name : version.reclaimable) used = minus(used, statistics[name]);
      limits.push_back({.name = "the control group /" + (group == "." ? "" : group.string()),
                        .most = most < machine.total ? plus(most, machine.swap) : kUnlimited,
                        .available = minus(std::min(most, high), used)});
    }
    if (group.empty() || group == ".") return;
  }
}

constexpr const char* kKills = "oom_kill";

}  // namespace

uint64_t memory_kills(const fs::path& root) {
  for (const Version& version : versions()) {
    const std::optional<std::string> own = group_of(root, version);
    const std::optional<Mount> mount = mount_of(root, version);
    if (!own || !mount) continue;
    const auto numbers = numbers_of(mount->folder / within(*mount, *own).lexically_normal() / version.events);
    if (const auto kills = numbers.find(kKills); kills != numbers.end()) return kills->second;
  }
  return numbers_of(root / "proc/vmstat")[kKills];
}

std::vector<MemoryLimit> memory_limits(const fs::path& root) {
  const Machine machine = machine_of(root);
  std::vector<MemoryLimit> limits;
  if (machine.total != kUnlimited)
    limits.push_back(
        {.name = "this machine", .most = plus(machine.total, machine.swap), .available = machine.available});
  for (const Version& version : versions()) add_groups(root, machine, version, limits);
  return limits;
}

uint64_t total_memory(const fs::path& root) {
  const Machine machine = machine_of(root);
  uint64_t bytes = std::min<uint64_t>(machine.total, std::numeric_limits<int64_t>::max());
  std::vector<MemoryLimit> groups;
  for (const Version& version : versions()) add_groups(root, machine, version, groups);
  for (const MemoryLimit& group : groups)
    if (group.most != kUnlimited) bytes = std::min(bytes, group.most - machine.swap);
  return bytes;
}

}  // namespace tessera
