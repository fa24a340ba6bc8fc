// The prompts that cross-attention attends to during a run.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "nn/cross_attention.h"

namespace tessera::nn {

// Holds the prompts of a run, and each layer's keys and values for them.
class Context {
 public:
  // `prompts` are the distinct ones, [1, L, D] each; sample b of a batch attends to prompts[prompt_of[b]].
  Context(std::vector<at::Tensor> prompts, at::ArrayRef<int64_t> prompt_of)
      : prompts_(std::move(prompts)), prompt_of_(prompt_of) {}

  // Computes the keys and values of a layer, before its first use.
  void add(const CrossAttention& layer) {
    std::vector<at::Tensor>& of_layer = keys_values_[&layer];
    for (const at::Tensor& prompt : prompts_) of_layer.push_back(layer.keys_values(prompt));
  }
  // x [B, n, width] -> [B, n, width].
  at::Tensor attention(const CrossAttention& layer, const at::Tensor& x) const {
    return layer(x, keys_values_.at(&layer), prompt_of_);
  }

 private:
  std::vector<at::Tensor> prompts_;
  at::ArrayRef<int64_t> prompt_of_;
  std::map<const CrossAttention*, std::vector<at::Tensor>> keys_values_;
};

}  // namespace tessera::nn
