// How the queries of a rank meet the keys of all ranks, patches and steps: one interface, implemented for
// ranks that have all keys, for ranks that gather them, for a ring, for patches that come one after the
// other, and for displaced patches.
//
// Shapes: B samples, n tokens of this rank (of its Ulysses group, in the order of its ranks), H query heads
// and K key heads (of this rank's share), D size of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/token_sequence.h"

namespace tessera::nn {

struct QueriesKeysValues {
  at::Tensor q;     // [B, n, H * D]
  at::Tensor k, v;  // [B, n, K * D]; K divides H
};

// What one call of attention has to compute.
struct AttentionCall {
  const QueriesKeysValues& own;
  int64_t depth;  // D
  const TokenSequence& sequence;
  // Whether the result is laid out token by token, [n, B, H * D] in memory.
  bool by_token = false;

  int64_t heads() const { return own.q.size(2) / depth; }
  at::Tensor room() const;  // for the result [B, n, H * D]
};

class TokenAttention {
 public:
  virtual ~TokenAttention() = default;
  // All ranks of the groups must call this together. Returns [B, n, H * D].
  virtual at::Tensor operator()(const AttentionCall& call) = 0;
  // The block whose attention comes next. Calls within a block are distinguished by their order.
  virtual void enter_block(int64_t /*block*/) {}
};

// Chooses by the groups and the number of patches. `groups` and `exchange` must outlive the result;
// `exchange` is null without displacement.
std::unique_ptr<TokenAttention> make_token_attention(const TokenGroups& groups, int64_t patches,
                                                     parallel::DisplacedExchange* exchange);

}  // namespace tessera::nn
