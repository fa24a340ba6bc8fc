#include "plan/calibration/stopwatch.h"

#include <ATen/Functions.h>
#include <time.h>

#include <algorithm>
#include <utility>

namespace tessera::plan {
namespace {

constexpr size_t kFewest = 3, kMost = 200;
// Shorter work is repeated between two looks at the clock.
constexpr double kShort = 20e-6;
constexpr int64_t kTogether = 16;
constexpr int64_t kSideOfProduct = 160;  // its three matrices take 300 KB
constexpr int kProducts = 4;

double seconds_of(clockid_t id) {
  timespec now = {};
  ::clock_gettime(id, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The value below which one part in `parts` of all values lies.
double quantile(std::vector<double> values, size_t parts) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(values.size() / parts);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

}  // namespace

Clock clock_for(int64_t threads) {
  const clockid_t id = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  return [id] { return seconds_of(id); };
}

double lower_quartile(std::vector<double> values) {
  return quantile(std::move(values), 4);
}

double typical(std::vector<double> times, int64_t threads) {
  return quantile(std::move(times), threads == 1 ? 2 : 4);
}

std::vector<double> times_of(const std::function<void()>& run, double budget, const Clock& clock) {
  std::vector<double> times;
  for (const PacedTime& each : paced_times_of(run, budget, clock, [] { return 1.0; }))
    times.push_back(each.seconds);
  return times;
}

double PacedTime::at_pace(double usual, double memory_seconds) const {
  const double computing = 1 - std::min(memory_seconds / seconds, 1.0);
  return seconds * (1 + computing * (usual / pace - 1));
}

double look_at_pace() {
  static const at::Tensor a = at::full({kSideOfProduct, kSideOfProduct}, 0.5), b = a.clone();
  static at::Tensor product = at::empty_like(a);
  at::mm_out(product, a, b);  // whatever ran before has displaced the cache's contents, depending on its size
  const double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < kProducts; ++i) at::mm_out(product, a, b);
  return seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin;
}

std::vector<PacedTime> paced_times_of(const std::function<void()>& run, double budget, const Clock& clock,
                                      const std::function<double()>& look) {
  const double deadline = seconds_of(CLOCK_MONOTONIC) + budget, begin = clock();
  run();
  const int64_t together = clock() - begin < kShort ? kTogether : 1;
  std::vector<PacedTime> times;
  double pace = look();
  while (times.size() < kFewest || (times.size() < kMost && seconds_of(CLOCK_MONOTONIC) < deadline)) {
    const double before = clock();
    for (int64_t i = 0; i < together; ++i) run();
    const double after = clock(), next = look();
    times.push_back({(after - before) / static_cast<double>(together), (pace + next) / 2});
    pace = next;
  }
  return times;
}

}  // namespace tessera::plan
