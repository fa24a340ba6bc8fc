// How long a denoising step takes for several pictures at once, and how many should share one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>

#include "serve/job.h"

namespace tessera::serve {

// For requests of one batch key, from measured steps.
class CostCurve {
 public:
  // Records that a step with this many pictures took this long; both must be positive. Repeated measurements
  // of one size are averaged; a new one has a weight of at least a sixteenth.
  void add(int64_t pictures, Seconds step);

  // Records that this many pictures do not fit into memory, whatever their steps would take.
  void lacks_memory(int64_t pictures) { most_ = std::min(most_, pictures - 1); }

  // The time of a step with `pictures` pictures divided by that of one picture. Between measured sizes it is
  // interpolated; beyond them, and until one picture has been measured, each further picture adds the time of
  // one alone.
  double ratio(int64_t pictures) const;

  // How many of `waiting` equal pictures, at most `most`, should begin together so that the mean time until
  // each is done is least. In batches of n, the mean is t(n) (waiting/n + 1)/2 if a batch takes t(n) seconds.
  // Where t(n) >= n t(1), as on a CPU, this is least for n = 1, however many wait; where t(n) is less, n
  // grows with the number that wait. Sizes beyond the largest measured one, and those that lack memory, are
  // not chosen.
  int64_t best(int64_t waiting, int64_t most) const;

 private:
  struct Mean {
    double seconds = 0;
    int64_t count = 0;
  };
  std::map<int64_t, Mean> steps_;
  int64_t most_ = std::numeric_limits<int64_t>::max();
};

}  // namespace tessera::serve
