#include "serve/cost_curve.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace tessera::serve {

void CostCurve::add(int64_t pictures, Seconds step) {
  TESSERA_CHECK(pictures > 0 && step > Seconds(0), "{} pictures in {} s", pictures, step.count());
  constexpr int64_t kMost = 16;
  Mean& mean = steps_[pictures];
  mean.count = std::min(mean.count + 1, kMost);
  mean.seconds += (step.count() - mean.seconds) / static_cast<double>(mean.count);
}

double CostCurve::ratio(int64_t pictures) const {
  const auto one = steps_.find(1);
  if (one == steps_.end() || pictures <= 1) return static_cast<double>(pictures);
  const auto above = steps_.lower_bound(pictures);
  if (above == steps_.end()) {
    const auto& [size, mean] = *steps_.rbegin();
    return mean.seconds / one->second.seconds + static_cast<double>(pictures - size);
  }
  const auto below = above->first == pictures ? above : std::prev(above);
  const int64_t gap = std::max<int64_t>(above->first - below->first, 1);
  const double part = static_cast<double>(pictures - below->first) / static_cast<double>(gap);
  const double seconds = below->second.seconds + part * (above->second.seconds - below->second.seconds);
  return seconds / one->second.seconds;
}

int64_t CostCurve::best(int64_t waiting, int64_t most) const {
  if (!steps_.contains(1)) return 1;
  const int64_t last = std::min({waiting, most, most_, steps_.rbegin()->first});
  int64_t best = 1;
  double least = static_cast<double>(waiting) + 1;
  for (int64_t n = 2; n <= last; ++n) {
    const double mean = ratio(n) * (static_cast<double>(waiting) / static_cast<double>(n) + 1);
    if (mean < least) {
      least = mean;
      best = n;
    }
  }
  return best;
}

}  // namespace tessera::serve
