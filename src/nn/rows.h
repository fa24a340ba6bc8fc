// The rows of a picture that are at hand, for networks of convolutions (U-Nets, decoders): what their layers
// see of the others, fresh or as they were one step ago. A model hands in what it has at hand and knows
// nothing of either.
//
// Shapes: B samples, C channels, H x W the picture at this scale, h of its rows at hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "nn/tokens.h"
#include "ops/halo.h"
#include "parallel/halo.h"

namespace tessera::nn {

// A picture at one of its scales: all scales are cut at the same places.
class Rows {
 public:
  // At the scale of the grid of `tokens`, which must outlive this.
  explicit Rows(Tokens& tokens) : Rows(tokens, tokens.cut()) {}

  const parallel::Grid& grid() const { return cut_.grid; }       // 1 x H x W
  Range local() const { return cut_.part(0, tokens_->rank()); }  // of the H rows
  bool is_whole() const { return cut_.ranks == 1; }
  // The scale of half as many rows and columns, rounded up; of twice as many.
  Rows coarser() const { return {*tokens_, cut_.coarser()}; }
  Rows finer() const { return {*tokens_, cut_.finer()}; }

  const ops::ConvBlocks& blocks() const { return tokens_->conv_blocks(); }  // of every convolution
  // What a convolution sees around x [B, C, h, W], all of which have one shape but for h; nothing where the
  // picture is whole. part(range) gives rows of x as the convolution sees them, [B, C, range.length, W].
  // `always_fresh`: also in steps that leave the rest as it was.
  std::optional<ops::Halo> halo(const at::Tensor& x, const parallel::RowWindow& window,
                                const std::function<at::Tensor(const Range&)>& part,
                                bool always_fresh = false) const;
  // The moments [B, groups, 2] (mean, biased variance) by which a part is normalised that has `own` ones.
  at::Tensor moments(const at::Tensor& own) const;
  // Attention between all positions -> [B, h * W, heads * D].
  at::Tensor attention(const QueriesKeysValues& own, int64_t depth) const;

 private:
  Rows(Tokens& tokens, const parallel::Cut& cut) : tokens_(&tokens), cut_(cut) {}
  std::vector<Range> bands() const;  // rows of each part

  Tokens* tokens_;
  parallel::Cut cut_;
};

}  // namespace tessera::nn
