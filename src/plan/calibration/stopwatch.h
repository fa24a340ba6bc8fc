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
// over or it is done often enough. Returns the lower quartile of the times of one, in seconds: other programs
// only ever make it longer.
double time_of(const std::function<void()>& run, double budget, const Clock& clock);
double lower_quartile(std::vector<double> values);

}  // namespace tessera::plan
