// The prompts that cross-attention attends to, for the length of a run.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "nn/cross_attention.h"

namespace tessera::nn {

// Holds the prompts of a run. Each layer's keys and values of them are computed at the layer's first use.
class Context {
 public:
  // `prompts` are the distinct ones, [1, L, D] each; sample b of a batch attends to prompts[prompt_of[b]].
  Context(std::vector<at::Tensor> prompts, at::ArrayRef<int64_t> prompt_of)
      : prompts_(std::move(prompts)), prompt_of_(prompt_of) {}

  // x [B, n, width] -> [B, n, width].
  at::Tensor attention(const CrossAttention& layer, const at::Tensor& x) {
    std::vector<at::Tensor>& of_layer = keys_values_[&layer];
    if (of_layer.empty()) {
      for (const at::Tensor& prompt : prompts_) of_layer.push_back(layer.keys_values(prompt));
    }
    return layer(x, of_layer, prompt_of_);
  }

 private:
  std::vector<at::Tensor> prompts_;
  at::ArrayRef<int64_t> prompt_of_;
  std::map<const CrossAttention*, std::vector<at::Tensor>> keys_values_;
};

}  // namespace tessera::nn
