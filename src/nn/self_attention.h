// Self-attention of tokens that are split over ranks (Ulysses, Ring, or both: USP, arXiv:2405.07719) and,
// with PipeFusion (arXiv:2405.14430), come patch by patch. A model hands in what it has and knows nothing of
// either.
//
// Legend: B samples, n tokens of this rank in the patches at hand, H heads of this rank's tensor group share,
// D size of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "ops/attention.h"
#include "parallel/cut.h"

namespace tessera::nn {

// One for a run: it keeps the keys and values of earlier patches.
class SelfAttention {
 public:
  explicit SelfAttention(parallel::TokenCut cut) : cut_(std::move(cut)) {}

  const parallel::TokenCut& cut() const { return cut_; }

  // qkv [B, n, 3 * H * D] (queries, keys, values side by side), of this rank's tokens in `patches`, for the
  // layer `layer` -> [B, n, H * D]. All ranks of the sequence axes must call this for the same patches and
  // layer. Queries see every token of the picture: those of `patches` and those of earlier calls as this
  // layer last saw them (one denoising step ago); what it never saw is left out. Patches come in their order.
  //
  // With one patch and Ring the keys and values go around; with more patches every rank of the ring keeps
  // them all, so that the next step reads no holes.
  at::Tensor operator()(const at::Tensor& qkv, int64_t heads, int64_t layer, Range patches);

 private:
  // Of one layer, h heads of this rank of the Ulysses group.
  struct Kept {
    std::optional<ops::KeptKeysValues> keys_values;  // of all tokens of the picture
    int64_t seen = 0;                                // tokens, from the first one on
  };
  // keys_values [B, n, 2 * h * D] of this rank's Ulysses group into their places, here and on the whole ring.
  const Kept& keep(const at::Tensor& keys_values, int64_t heads, int64_t layer, Range patches);
  at::Tensor ring_attention(const at::Tensor& qkv, int64_t heads, Range patches) const;

  parallel::TokenCut cut_;
  std::vector<Kept> kept_;  // by layer; empty with one patch
};

}  // namespace tessera::nn
