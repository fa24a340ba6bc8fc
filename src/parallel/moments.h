// Moments of a picture from those of its parts. All are fp32 or double [..., 2]: mean and biased variance.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tessera::parallel {

// Of the whole; rows[r] is the size of part r, whose moments are not read where that is 0. The variance is
// that within the parts and that between their means (Chan et al. 1979), so that a large mean costs nothing.
at::Tensor merge_moments(std::span<const at::Tensor> parts, std::span<const int64_t> rows);

// What is taken for the moments of the whole in a step in which only those of the own part are known, from
// those of the step before (DistriFusion, arXiv:2402.19481, section 4.3). With means of x and of x^2, whose
// difference of squares is the variance: whole_before + share * (own - own_before). Where that gives a
// negative variance, the own part's stands instead.
at::Tensor displaced_moments(const at::Tensor& whole_before, const at::Tensor& own,
                             const at::Tensor& own_before, double share);

}  // namespace tessera::parallel
