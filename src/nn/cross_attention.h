// Attention from the local tokens to a prompt. Each sample attends to its own prompt, at that prompt's
// length.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "nn/tensor_parallel.h"

namespace tessera::nn {

// The weights are named as in diffusers' Attention: to_q, to_k, to_v, to_out.0.
class CrossAttention {
 public:
  // Queries have `width` features, prompts `context_width`.
  CrossAttention(const weights::Scope& scope, int64_t width, int64_t context_width, int64_t heads,
                 int64_t depth, ops::LinearOptions options = {});

  // For weights with other names.
  CrossAttention(ColumnParallel to_q, ColumnParallel to_kv, RowParallel to_out, int64_t depth)
      : to_q_(std::move(to_q)), to_kv_(std::move(to_kv)), to_out_(std::move(to_out)), depth_(depth) {}

  // Projects a prompt [1, L, context_width] -> [1, L, 2 * local heads * D], keys first. Called once per run.
  at::Tensor keys_values(const at::Tensor& prompt) const { return to_kv_(prompt); }

  // x [B, n, width] -> [B, n, width]. Sample b attends to prompts[prompt_of[b]], a result of keys_values().
  at::Tensor operator()(const at::Tensor& x, const std::vector<at::Tensor>& prompts,
                        at::ArrayRef<int64_t> prompt_of) const;

 private:
  ColumnParallel to_q_, to_kv_;
  RowParallel to_out_;
  int64_t depth_;
};

}  // namespace tessera::nn
