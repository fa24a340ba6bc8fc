// How long a denoising step takes with several pictures at once, and how many should share one.
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
  // A step with so many pictures took so long, both positive. Of several measurements of one size the average
  // counts, in which later ones weigh at least a sixteenth.
  void add(int64_t pictures, Seconds step);

  // So many pictures find no memory, whatever their steps take.
  void lacks_memory(int64_t pictures) { most_ = std::min(most_, pictures - 1); }

  // The time of a step with `pictures` pictures by that of one; between measured sizes it is interpolated,
  // and beyond them each further picture takes as long as one alone. That is also so as long as one picture
  // has not been measured.
  double ratio(int64_t pictures) const;

  // How many of `waiting` equal pictures, and at most `most`, to begin together so that the mean time until
  // each is done is least. In batches of n, the mean is t(n) (waiting/n + 1)/2 for t(n) seconds a picture or
  // batch. Where t(n) >= n t(1), as on a CPU, that is least for n = 1, whatever waits; where t(n) is less, n
  // grows with what waits. Sizes beyond the largest measured one are not chosen, nor those that lack memory.
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
