// Attention from the tokens at hand to a prompt: each sample sees its own prompt, at its own length.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "nn/tensor_parallel.h"

namespace tessera::nn {

// Members are named as in diffusers' Attention: to_q, to_k, to_v, to_out.0.
class CrossAttention {
 public:
  // Queries of `width` features, prompts of `context_width`.
  CrossAttention(const weights::Scope& scope, int64_t width, int64_t context_width, int64_t heads,
                 int64_t depth, ops::LinearOptions options = {});

  // Of a prompt [1, L, context_width], once a run: [1, L, 2 * own heads * D], keys first.
  at::Tensor keys_values(const at::Tensor& prompt) const { return to_kv_(prompt); }

  // x [B, n, width] -> [B, n, width]; sample b sees prompts[prompt_of[b]], which keys_values() gave.
  at::Tensor operator()(const at::Tensor& x, const std::vector<at::Tensor>& prompts,
                        at::ArrayRef<int64_t> prompt_of) const;

 private:
  ColumnParallel to_q_, to_kv_;
  RowParallel to_out_;
  int64_t depth_;
};

}  // namespace tessera::nn
