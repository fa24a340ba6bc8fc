// Merges the moments of the parts of an image. All moments are fp32 or double [..., 2]: mean and biased
// variance.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tessera::parallel {

// The moments of the whole, in double. rows[r] is the size of part r; a part of size 0 is not read. The
// variance is that within the parts plus that between their means (Chan et al. 1979), which stays accurate
// for large means.
at::Tensor merge_moments(std::span<const at::Tensor> parts, std::span<const int64_t> rows);

// Estimates the moments of the whole in a step where only those of the local part are fresh, from the moments
// of the step before (DistriFusion, arXiv:2402.19481, section 4.3): whole_before + share * (own - own_before)
// for the means of x and of x^2, which give the variance as E[x^2] - E[x]^2. If that variance is negative,
// the local part's is used instead.
at::Tensor displaced_moments(const at::Tensor& whole_before, const at::Tensor& own,
                             const at::Tensor& own_before, double share);

}  // namespace tessera::parallel
