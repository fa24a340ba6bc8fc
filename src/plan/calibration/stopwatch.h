// How long work takes on this processor, whatever else runs on it meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::plan {

// Seconds from some moment on. On one thread it is the time that the thread had a core: what a shared machine
// takes away does not count. On several it is that of the wall.
using Clock = std::function<double()>;
Clock clock_for(int64_t threads);

// Does `run` once before the others, then at least three times, and until `budget` seconds of the wall are
// over or it is done often enough. Returns the times of one, in seconds.
std::vector<double> times_of(const std::function<void()>& run, double budget, const Clock& clock);

// A time, and how long a product that the core holds in its own cache took right before and after.
struct PacedTime {
  double seconds = 0, pace = 0;

  // How long the same takes where the product takes `usual`: what the core computes changes with the pace of
  // the core, what it waits for while memory sends does not. `memory_seconds` are those that memory needs.
  double at_pace(double usual, double memory_seconds) const;
};

// The core of a shared machine is up to 1.4 times as slow while a neighbour computes on its other thread,
// which changes every second. Returns the time of the product, on the clock of a thread.
double look_at_pace();

// times_of(), with a `look` around each time.
std::vector<PacedTime> paced_times_of(const std::function<void()>& run, double budget, const Clock& clock,
                                      const std::function<double()>& look);

// Of such times. On one thread the median: how fast a core is changes with what its neighbours do, and a
// network meets all of it. On several the lower quartile, because other programs only ever make the wall's
// time longer.
double typical(std::vector<double> times, int64_t threads);
double lower_quartile(std::vector<double> values);

}  // namespace tessera::plan
