#include "plan/calibration/stopwatch.h"

#include <time.h>

#include <algorithm>
#include <utility>

namespace tessera::plan {
namespace {

constexpr size_t kFewest = 3, kMost = 200;
// Work that is shorter is done several times between two looks at the clock.
constexpr double kShort = 20e-6;
constexpr int64_t kTogether = 16;

double seconds_of(clockid_t id) {
  timespec now = {};
  ::clock_gettime(id, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The value below which one of so many parts of all are.
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
  const double deadline = seconds_of(CLOCK_MONOTONIC) + budget, begin = clock();
  run();
  const int64_t together = clock() - begin < kShort ? kTogether : 1;
  std::vector<double> times;
  while (times.size() < kFewest || (times.size() < kMost && seconds_of(CLOCK_MONOTONIC) < deadline)) {
    const double before = clock();
    for (int64_t i = 0; i < together; ++i) run();
    times.push_back((clock() - before) / static_cast<double>(together));
  }
  return times;
}

}  // namespace tessera::plan
