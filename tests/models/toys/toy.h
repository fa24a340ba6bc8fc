// Small families that exist only for tests, with features that PixArt lacks. Each is written as if for one
// device. naive.h has the same in plain tensors.
#pragma once

#include <cmath>

#include "models/family.h"
#include "models/local_blocks.h"
#include "nn/tensor_parallel.h"
#include "tests/support/drawn_weights.h"

namespace tessera::models::toys {

// Provides every weight, random by its name. Attention is sharp, so that reading wrong keys changes results.
class RandomWeights final : public weights::DrawnWeights {
 public:
  RandomWeights() : DrawnWeights(draw) {}

 private:
  static at::Tensor draw(const std::string& key, at::IntArrayRef shape, at::Generator& generator) {
    const bool is_sharp = key.find("to_q") != std::string::npos || key.find("to_k") != std::string::npos;
    const double scale =
        shape.size() > 1 ? (is_sharp ? 3 : 1) / std::sqrt(static_cast<double>(shape[1])) : 0.1;
    return at::randn(shape, generator) * scale + (key.find("norm") != std::string::npos ? 1.0 : 0.0);
  }
};

// The families have these sizes in common: 10 heads of queries over 5 of keys.
inline constexpr int64_t kHeads = 10, kKeyHeads = 5, kDepth = 8, kWidth = kHeads * kDepth, kPrompt = 12,
                         kBlocks = 6, kChannels = 4;
inline constexpr ops::LinearOptions kPlain{.bias = false};

// Queries, keys and values are one product.
inline nn::ColumnParallel read_qkv(const weights::Scope& scope) {
  const nn::Split queries{kKeyHeads, kHeads / kKeyHeads * kDepth}, keys{kKeyHeads, kDepth};
  using Layers = std::vector<nn::ColumnParallel::Layer>;
  return {Layers{{scope / "to_q", queries}, {scope / "to_k", keys}, {scope / "to_v", keys}}, kWidth};
}
inline nn::RowParallel read_out(const weights::Scope& scope) {
  return {scope / "to_out", {kKeyHeads, kHeads / kKeyHeads * kDepth}, kWidth};
}

struct FeedForward {
  explicit FeedForward(const weights::Scope& scope)
      : in(scope / "in", kWidth, {3 * kWidth, 1}), out(scope / "out", {3 * kWidth, 1}, kWidth) {}
  at::Tensor operator()(const at::Tensor& x) const { return out(in(x, ops::Activation::kSilu)); }

  nn::ColumnParallel in;
  nn::RowParallel out;
};

// Returns x / rms(x), the input of each layer.
inline at::Tensor normed(const at::Tensor& x) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-6);
}

// Makes a denoiser of weights `ToyWeights` whose Forward is `ToyForward`.
template <typename ToyWeights, typename ToyForward>
class ToyDenoiser final : public Denoiser {
 public:
  ToyDenoiser(const weights::Scope& scope, const LocalBlocks& local_blocks)
      : weights_(scope, local_blocks), dtype_(scope.dtype()) {}
  std::unique_ptr<Forward> start(const ForwardInputs& inputs) const override {
    return std::make_unique<ToyForward>(weights_, inputs);
  }
  at::ScalarType dtype() const override { return dtype_; }
  int64_t conditioning_width() const override { return kPrompt; }

 private:
  ToyWeights weights_;
  at::ScalarType dtype_;
};

}  // namespace tessera::models::toys
