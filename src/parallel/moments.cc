#include "parallel/moments.h"

#include <ATen/Functions.h>

namespace tessera::parallel {
namespace {

at::Tensor mean_of(const at::Tensor& moments) {
  return moments.select(-1, 0).to(at::kDouble);
}
at::Tensor variance_of(const at::Tensor& moments) {
  return moments.select(-1, 1).to(at::kDouble);
}
at::Tensor square_of(const at::Tensor& moments) {
  return variance_of(moments) + mean_of(moments).square();
}

}  // namespace

at::Tensor merge_moments(std::span<const at::Tensor> parts, std::span<const int64_t> rows) {
  int64_t all = 0;
  for (const int64_t count : rows) all += count;
  const auto sum = [&](const auto& term) {
    at::Tensor total;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (rows[i] == 0) continue;
      const at::Tensor share = term(parts[i]) * (static_cast<double>(rows[i]) / static_cast<double>(all));
      total = total.defined() ? total + share : share;
    }
    return total;
  };
  const at::Tensor mean = sum(mean_of);
  const at::Tensor variance =
      sum([&](const at::Tensor& part) { return variance_of(part) + (mean_of(part) - mean).square(); });
  return at::stack({mean, variance}, -1);
}

at::Tensor displaced_moments(const at::Tensor& whole_before, const at::Tensor& own,
                             const at::Tensor& own_before, double share) {
  const at::Tensor mean = mean_of(whole_before) + share * (mean_of(own) - mean_of(own_before));
  const at::Tensor square = square_of(whole_before) + share * (square_of(own) - square_of(own_before));
  const at::Tensor variance = square - mean.square();
  if (variance.is_meta()) {  // ATen has no `where` for meta tensors
    const at::Tensor is_negative = (variance < 0).to(at::kDouble);
    return at::stack({mean, variance * (1 - is_negative) + variance_of(own) * is_negative}, -1);
  }
  return at::stack({mean, at::where(variance < 0, variance_of(own), variance)}, -1);
}

}  // namespace tessera::parallel
