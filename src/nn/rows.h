// The local rows of an image, for convolutional networks (U-Nets, decoders), and what their layers need from
// other ranks' rows: current values, or those of the previous step. A model passes in its local rows and does
// not know which of the two it gets.
//
// Shapes: B samples, C channels, H x W the image at this scale, h of its rows local.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "nn/tokens.h"
#include "ops/conv.h"
#include "parallel/halo.h"

namespace tessera::nn {

// An image at one of its scales. All scales are cut at the same places.
class Rows {
 public:
  // Has the scale of the grid of `tokens`, which must outlive this object.
  explicit Rows(Tokens& tokens) : Rows(tokens, tokens.cut()) {}

  const parallel::Grid& grid() const { return cut_.grid; }       // 1 x H x W
  Range local() const { return cut_.part(0, tokens_->rank()); }  // among the H rows
  bool is_whole() const { return cut_.ranks == 1; }
  // The scales with half as many rows and columns, rounded up, and with twice as many.
  Rows coarser() const { return {*tokens_, cut_.coarser()}; }
  Rows finer() const { return {*tokens_, cut_.finer()}; }

  const ops::ConvBlocks& blocks() const { return tokens_->conv_blocks(); }  // for every convolution
  // The rows around x [B, C, h, W] that a convolution reads; nothing if one rank holds the whole image. All
  // ranks must call this together, with x of the same shape, except for h. part(range) returns rows of x as
  // the convolution sees them, [B, C, range.length, W]. `always_fresh` exchanges current rows even in steps
  // that otherwise use those of the previous step.
  std::optional<ops::Halo> halo(const at::Tensor& x, const parallel::RowWindow& window,
                                const std::function<at::Tensor(const Range&)>& part,
                                bool always_fresh = false) const;
  // The moments [B, groups, 2] (mean, biased variance) that normalise this rank's part, given its local
  // moments `own`. All ranks must call this together.
  at::Tensor moments(const at::Tensor& own) const;
  // Attention between all positions of the image -> [B, h * W, heads * D].
  at::Tensor attention(const QueriesKeysValues& own, int64_t depth) const;

 private:
  Rows(Tokens& tokens, const parallel::Cut& cut) : tokens_(&tokens), cut_(cut) {}
  std::vector<Range> bands() const;  // the rows of each part

  Tokens* tokens_;
  parallel::Cut cut_;
};

}  // namespace tessera::nn
