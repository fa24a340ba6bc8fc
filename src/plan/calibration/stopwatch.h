// How long work takes on this processor, whatever else is running.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::plan {

// Seconds since some moment. On one thread, only the time in which the thread had a core counts, so that a
// shared machine does not distort it. On several threads, it is wall time.
using Clock = std::function<double()>;
Clock clock_for(int64_t threads);

// Calls `run` once without timing it, then at least three times, and until `budget` seconds of wall time have
// passed or it has run often enough. Returns the time of each call, in seconds.
std::vector<double> times_of(const std::function<void()>& run, double budget, const Clock& clock);

// A time, and how long a product that fits into the core's own cache took right before and after.
struct PacedTime {
  double seconds = 0, pace = 0;

  // How long the same work takes if the product takes `usual`: computation follows the pace of the core,
  // waiting for memory does not. `memory_seconds` is the time that memory needs.
  double at_pace(double usual, double memory_seconds) const;
};

// A core of a shared machine can be up to 1.4 times as slow while a neighbour computes on its other thread,
// and this changes every second. Returns the time of the product, on the clock of a thread.
double look_at_pace();

// times_of(), with a `look` around each time.
std::vector<PacedTime> paced_times_of(const std::function<void()>& run, double budget, const Clock& clock,
                                      const std::function<double()>& look);

// The typical one of such times. On one thread, the median: the speed of a core changes with what its
// neighbours do, and a network meets all of that. On several threads, the lower quartile, because other
// programs only ever make wall time longer.
double typical(std::vector<double> times, int64_t threads);
double lower_quartile(std::vector<double> values);

}  // namespace tessera::plan
