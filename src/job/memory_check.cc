#include "job/memory_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

namespace tessera::job {
namespace {

// Returns an upper bound of what the ranks take: on each of them, twice the bytes of the weight files, and
// for each pixel of a group of pictures the tensors of a decoder with 256 channels in fp32.
uint64_t bound_of(const engine::Settings& settings, uint64_t weights, int64_t local_ranks) {
  constexpr uint64_t kOfPixel = 4096, kOfGroup = uint64_t{1} << 31;
  const auto ranks = static_cast<uint64_t>(local_ranks);
  const uint64_t one =
      kOfPixel * static_cast<uint64_t>(settings.model_height * settings.model_width * settings.frames);
  const uint64_t all = one * static_cast<uint64_t>(settings.pictures());
  return 2 * ranks * weights + std::min(all, std::max(one * ranks, kOfGroup));
}

// Suggests what would make the run smaller.
std::string advice(const Job& job, const plan::MemoryNeed& need) {
  std::vector<std::string> ways = {"a smaller size"};
  if (job.settings.frames > 1) ways.push_back("fewer frames");
  if (!job.model.shape.is_video && !job.settings.request.vae_tiling && need.decode > need.denoise)
    ways.push_back(field("vae_tiling"));
  if (*job.settings.request.dtype == at::kFloat) ways.push_back(field("dtype") + " bf16");
  return fmt::format("{}", fmt::join(ways, " or "));
}

}  // namespace

plan::MemoryNeed need_of(const Job& job) {
  const SuppressLog suppress_log;  // the run repeats the warnings
  return plan::memory_need(job.settings, job.model, job.layout);
}

std::optional<MemoryLack> find_lack(uint64_t need, const std::vector<MemoryLimit>& limits) {
  const auto least = [&](uint64_t MemoryLimit::*bytes) {
    return std::min_element(limits.begin(), limits.end(),
                            [=](const MemoryLimit& a, const MemoryLimit& b) { return a.*bytes < b.*bytes; });
  };
  if (limits.empty()) return std::nullopt;
  const std::string what = fmt::format("the run needs about {}", bytes_text(need));
  if (const auto limit = least(&MemoryLimit::most); need > limit->most) {
    return MemoryLack{fmt::format("{}, but {} has {}", what, limit->name, bytes_text(limit->most)),
                      /*is_certain=*/true};
  }
  if (const auto limit = least(&MemoryLimit::available); need > limit->available) {
    return MemoryLack{fmt::format("{}, but {} has {} free, beyond which the kernel may kill it", what,
                                  limit->name, bytes_text(limit->available))};
  }
  return std::nullopt;
}

std::optional<MemoryLack> find_lack(const Job& job, const plan::MemoryNeed& need, int64_t local_ranks,
                                    const std::vector<MemoryLimit>& limits) {
  if (!job.settings.request.device.is_cpu()) return std::nullopt;
  const double share = static_cast<double>(local_ranks) / static_cast<double>(job.ranks());
  auto lack = find_lack(static_cast<uint64_t>(static_cast<double>(need.most()) * share), limits);
  if (lack) lack->message += "; try " + advice(job, need);
  return lack;
}

uint64_t bytes_of_weights(const engine::Model& model) {
  const std::filesystem::path& path = model.path();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return std::filesystem::file_size(path, ignored);
  uint64_t sum = 0;
  for (std::filesystem::recursive_directory_iterator each(path, ignored), end; !ignored && each != end;
       each.increment(ignored)) {
    std::error_code unreadable;
    const uint64_t bytes = each->is_regular_file(unreadable) ? each->file_size(unreadable) : 0;
    if (!unreadable) sum += bytes;
  }
  return sum;
}

bool is_small(const engine::Settings& settings, uint64_t weights, int64_t local_ranks,
              const std::vector<MemoryLimit>& limits) {
  constexpr uint64_t kPart = 3;
  const uint64_t bound = bound_of(settings, weights, local_ranks);
  return std::all_of(limits.begin(), limits.end(), [&](const MemoryLimit& limit) {
    return bound <= std::min(limit.most, limit.available) / kPart;
  });
}

void require_memory(const Job& job, int64_t local_ranks) {
  if (!job.settings.request.device.is_cpu()) return;
  const std::vector<MemoryLimit> limits = memory_limits();
  if (is_small(job.settings, bytes_of_weights(job.model), local_ranks, limits)) return;
  const std::optional<MemoryLack> lack = find_lack(job, need_of(job), local_ranks, limits);
  if (!lack) return;
  if (lack->is_certain) throw Error(ErrorKind::kMemory, "memory", lack->message);
  log_warning("{}", lack->message);
}

}  // namespace tessera::job
