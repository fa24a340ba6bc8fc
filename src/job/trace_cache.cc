#include "job/trace_cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/folders.h"
#include "core/host.h"
#include "core/text.h"
#include "engine/decode.h"
#include "job/report.h"
#include "launch/fingerprint.h"

namespace tessera::job {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostKept = uint64_t{256} << 20;

std::string hash_of(std::string_view text) {
  Hash hash;
  hash.add(text);
  return hash.text();
}

std::optional<fs::path> path_of(const std::string& inputs) {
  const auto folder = cache_folder();
  if (!folder) return std::nullopt;
  return *folder / "traces" / (hash_of(inputs) + ".trace");
}

void remove_oldest(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code code;
  uint64_t bytes = 0;
  for (const fs::path& each : list_folder(folder, code)) {
    std::error_code no_size, no_time;
    const uint64_t size = fs::file_size(each, no_size);
    const fs::file_time_type time = fs::last_write_time(each, no_time);
    if (no_size || no_time) continue;
    bytes += size;
    files.emplace_back(time, each);
  }
  std::sort(files.begin(), files.end());
  for (const auto& [time, path] : files) {
    if (bytes <= kMostKept) return;
    const uint64_t size = fs::file_size(path, code);
    if (!code && fs::remove(path, code)) bytes -= size;
  }
}

}  // namespace

std::string trace_inputs(const Job& job, const std::vector<int64_t>& ranks, bool keeps_graphs) {
  const auto& file = job.model.single_file;
  Json settings = settings_json(job);
  for (const char* name : {"model", "config", "seed"}) settings.erase(name);
  return Json{{"files",
               launch::make_fingerprint(job.model.folder, file ? std::optional(file->path()) : std::nullopt)},
              {"instructions", static_cast<int>(cpu_isa())},
              {"memory", engine::memory_of(at::kCPU)},
              {"settings", std::move(settings)},
              {"ranks", ranks},
              {"graphs", keeps_graphs}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A file consists of a line with the hash of all that follows, a line with the inputs, and the trace.
std::optional<plan::Trace> read_kept_trace(const std::string& inputs) {
  const auto path = path_of(inputs);
  std::error_code code;
  if (!path || !fs::is_regular_file(*path, code)) return std::nullopt;
  try {
    const std::string text = read_file(*path, kMostKept);
    const std::string_view all = text;
    const size_t first = all.find('\n'), second = all.find('\n', first + 1);
    if (first == std::string::npos || second == std::string::npos ||
        all.substr(0, first) != hash_of(all.substr(first + 1)) ||
        all.substr(first + 1, second - first - 1) != inputs)
      return std::nullopt;
    plan::Trace trace = plan::read_trace(all.substr(second + 1), path->string());
    fs::last_write_time(*path, fs::file_time_type::clock::now(), code);
    return trace;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void keep_trace(const std::string& inputs, const plan::Trace& trace) {
  const auto path = path_of(inputs);
  if (!path) return;
  const std::string rest = inputs + "\n" + plan::write_trace(trace);
  if (rest.size() > kMostKept / 2) return;
  std::error_code code;
  fs::create_directories(path->parent_path(), code);
  try {
    AtomicFile file(*path);
    file.write(hash_of(rest) + "\n" + rest);
    file.commit();
  } catch (const Error&) {
    return;
  }
  remove_oldest(path->parent_path());
}

}  // namespace tessera::job
