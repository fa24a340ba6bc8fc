#include "core/memory_limits.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::optional<uint64_t> parse(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;  // "max", for one
  return number;
}

// Returns the number in a file that holds nothing else.
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

// Says how a version of control groups names its files.
struct Version {
  const char* type;        // of the file system
  const char* controller;  // in /proc/self/cgroup; version 2 has none
  const char* most;
  const char* used;
  std::vector<const char*> reclaimable;  // in memory.stat
  const char* high;                      // beyond it a group is slowed down; may be nullptr
  const char* events;                    // counts the processes that the kernel ended
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
  std::string group;  // what of the hierarchy is mounted
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

// Returns the group relative to what is mounted. In a container, the hierarchy may be mounted from the
// container's own group on while the path of the process is that on the host, or the reverse.
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
  // The limits of all groups around a nested group apply to it as well.
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
