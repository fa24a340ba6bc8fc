#include "serve/estimates.h"

#include <algorithm>

namespace tessera::serve {
namespace {

// Clients can make up any number of batch keys.
constexpr size_t kMaxKeys = 1024;
// Before anything is measured: a second for a step of a megapixel.
constexpr double kFirstGuess = 1e-6;
constexpr int64_t kMemory = 4;

}  // namespace

void Estimates::Mean::add(double value) {
  count = std::min(count + 1, kMemory);
  seconds_per_work += (value - seconds_per_work) / static_cast<double>(count);
}

void Estimates::add_step(const std::string& batch_key, double work, Seconds step) {
  if (by_key_.size() >= kMaxKeys && !by_key_.contains(batch_key)) by_key_.erase(by_key_.begin());
  by_key_[batch_key].step.add(step.count() / work);
  all_.step.add(step.count() / work);
}

void Estimates::add_rest(const std::string& batch_key, double work, Seconds rest) {
  if (const auto found = by_key_.find(batch_key); found != by_key_.end())
    found->second.rest.add(rest.count() / work);
  all_.rest.add(rest.count() / work);
}

Seconds Estimates::step(const std::string& batch_key, double work) const {
  const auto found = by_key_.find(batch_key);
  if (found != by_key_.end() && found->second.step.count > 0)
    return Seconds(found->second.step.seconds_per_work * work);
  return Seconds((all_.step.count > 0 ? all_.step.seconds_per_work : kFirstGuess) * work);
}

Seconds Estimates::run(const std::string& batch_key, double work, int64_t steps) const {
  const auto found = by_key_.find(batch_key);
  const Mean& rest = found != by_key_.end() && found->second.rest.count > 0 ? found->second.rest : all_.rest;
  // If the rest has not been measured, it counts like a step.
  const double seconds = rest.count > 0 ? rest.seconds_per_work * work : step(batch_key, work).count();
  return std::max(step(batch_key, work) * static_cast<double>(steps) + Seconds(seconds), Seconds(1e-6));
}

}  // namespace tessera::serve
