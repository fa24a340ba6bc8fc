#include "serve/memory_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "job/memory_check.h"
#include "parallel/mesh.h"

namespace tessera::serve {
namespace {

// Clients can make up any number of kinds.
constexpr size_t kMaxKinds = 1024;

std::vector<MemoryLimit> lasting(std::vector<MemoryLimit> limits) {
  for (MemoryLimit& each : limits) each.available = kUnlimited;
  return limits;
}

}  // namespace

MemoryGate::MemoryGate(const job::Job& base, std::vector<MemoryLimit> limits)
    : base_(base), limits_(lasting(std::move(limits))), weights_(job::bytes_of_weights(base.model)) {}

std::string MemoryGate::kind_of(const Admitted& request) {
  return fmt::format("{} {}", request.batch_key, request.settings->pictures());
}

std::vector<MemoryLimit> MemoryGate::limits_beside(uint64_t held) const {
  std::vector<MemoryLimit> limits = limits_;
  for (MemoryLimit& each : limits) {
    if (held == 0 || each.most == kUnlimited) continue;
    each.name += fmt::format(", beside the {} that other worlds hold,", bytes_text(held));
    each.most -= std::min(each.most, held);
  }
  return limits;
}

void MemoryGate::hold_by_others(uint64_t bytes) {
  if (std::exchange(held_, bytes) != bytes) known_.clear();
}

std::optional<MemoryGate::Lack> MemoryGate::known(const Admitted& request) const {
  const int64_t ranks = parallel::Mesh(request.layout.sizes).world_size();
  if (!request.settings->request.device.is_cpu() ||
      job::is_small(*request.settings, weights_, ranks, limits_beside(held_)))
    return Lack();
  const auto found = known_.find(kind_of(request));
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

MemoryGate::Lack MemoryGate::look(const Admitted& request, uint64_t held) const {
  try {
    const job::Job job = {.arguments = base_.arguments,
                          .model = base_.model,
                          .settings = *request.settings,
                          .layout = request.layout,
                          .outputs = {}};
    const auto lack = job::find_lack(job, job::need_of(job), job.ranks(), limits_beside(held));
    return lack ? spell(lack->message) : "";
  } catch (const std::exception& error) {  // the run will report it too
    log_warning("{}", error.what());
    return "";
  }
}

void MemoryGate::keep(const Admitted& request, const Lack& lack, uint64_t held) {
  if (held != held_) return;
  if (known_.size() >= kMaxKinds) known_.erase(known_.begin());
  known_[kind_of(request)] = lack;
}

}  // namespace tessera::serve
