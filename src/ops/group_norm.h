// Group normalisation (Wu and He, arXiv:1803.08494) of channels-last tensors, with fused SiLU.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "kernels/group_norm.h"
#include "weights/scope.h"

namespace tessera::ops {

using kernels::Activation;
using kernels::ChannelMaps;

// y = (x - mean) / sqrt(variance + eps) * weight + bias, with the moments of each group of channels of a
// sample, followed by SiLU if that is the `activation`. Moments are computed in fp32 over a few positions,
// shifted by the first of them, and merged in double, so that a large mean with a small variance stays exact.
// On the CPU x must be channels-last, in fp32 or bf16 (checked); results have its dtype. 8 FLOPs per element,
// 9 with SiLU.
struct GroupNorm {
  GroupNorm() = default;
  // Reads `weight` and `bias` [channels]. `groups` divides `channels` (checked). `activation`: none or SiLU.
  GroupNorm(const weights::Scope& scope, int64_t channels, int64_t groups, double eps,
            Activation activation = Activation::kNone);
  GroupNorm(const at::Tensor& weight, const at::Tensor& bias, int64_t groups, double eps,
            Activation activation = Activation::kNone);

  at::Tensor operator()(const at::Tensor& x) const;  // [B, C, H, W], a new tensor

  // The steps of the norm, for callers that hold a part of the image or apply the map while reading. `offset`
  // [B, C] is added to x first if it is defined. moments() returns double [B, groups, 2] (mean, biased
  // variance) and records the operation for all steps.
  at::Tensor moments(const at::Tensor& x, const at::Tensor& offset = {}) const;
  // The maps that normalise samples with these moments, fp32 or double [B, groups, 2].
  ChannelMaps maps(const at::Tensor& moments, const at::Tensor& offset = {}) const;
  // Normalises x, or some of its rows, into a new tensor or into `y`, which may be x.
  at::Tensor apply(const ChannelMaps& maps, const at::Tensor& x) const;
  void apply_into(const at::Tensor& y, const ChannelMaps& maps, const at::Tensor& x) const;
  // Normalises x in its own memory if nothing else refers to it, otherwise into a new tensor.
  at::Tensor apply_over(const ChannelMaps& maps, at::Tensor x) const;

  int64_t groups = 1;
  double eps = 0;
  Activation activation = Activation::kNone;
  at::Tensor weight, bias;  // fp32 [C]
  std::string role = {};    // key of the weights in the checkpoint, for Operation

 private:
  void record_operation(const at::Tensor& x) const;
};

}  // namespace tessera::ops
