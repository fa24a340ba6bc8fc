// The tokens of a run and the attention between them, however they are spread over ranks (Ulysses, gathered
// keys and values, Ring, and products of these: USP, arXiv:2405.07719; DSP, arXiv:2403.10266; displaced
// patches, arXiv:2402.19481), all at once or patch by patch (PipeFusion, arXiv:2405.14430). A model passes in
// its local tokens and does not need to know about any of these.
//
// Shapes: B samples, n local tokens of the grid and those attached to it (this rank's part of the current
// patches; all of them on one rank), N all of these, R attached tokens and r local ones, l local tokens of
// another sequence (a text; this rank's part of it in the current patches), L all of its tokens, H query
// heads, K key heads (H unless they are grouped; arXiv:2305.13245), D size of a head. Heads are those in this
// rank's share of the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "nn/token_attention.h"
#include "nn/token_sequence.h"
#include "ops/conv.h"
#include "parallel/displaced.h"
#include "parallel/grid.h"

namespace tessera::nn {

// The layers before attention and after it, which see each token by itself.
struct AttentionLayers {
  // x [B, n, C] -> queries, keys and values. `angles` [n, D / 2, 2] are those of the tokens, if there are
  // any.
  std::function<QueriesKeysValues(const at::Tensor& x, const at::Tensor& angles)> in;
  std::function<at::Tensor(const at::Tensor& x)> out;  // [B, n, H * D] -> [B, n, C]
};

// There is one per run, because attention keeps what earlier patches and steps left. nn/token_attention.h
// determines which queries attend to which keys.
class Tokens {
 public:
  // One rank holds the whole grid.
  explicit Tokens(const parallel::Grid& grid) : Tokens(parallel::Cut(grid), TokenGroups()) {}
  // `cut` must have groups.all.size parts, of which this rank holds number groups.all.rank. Without
  // displacement that rank must be (ring.rank * gather.size + gather.rank) * ulysses.size + ulysses.rank.
  Tokens(parallel::Cut cut, TokenGroups groups);
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;
  ~Tokens() = default;

  // ---- Called by models. All ranks of the groups must make the same calls in the same order.

  const parallel::Grid& grid() const { return cut_.grid; }
  parallel::Grid held() const { return cut_.held(run_, groups_.all.rank); }  // of the local tokens

  // Attaches this many tokens to the grid, once, before the first step: for example, those of reference
  // pictures. They are dealt to patches and ranks like lines, and take part in attention like the tokens of
  // the grid, but only in attention over all tokens. Local ones follow those of the grid, by patch.
  void attach(int64_t count) { attached_ = count; }
  // The local part of x, which covers the attached tokens: [.., R, ..] -> [.., r, ..].
  at::Tensor local_attached(const at::Tensor& x, int64_t dim) const;

  // The local tokens of x, which covers all tokens, the attached ones after those of the grid: [.., N, ..] ->
  // [.., n, ..].
  at::Tensor local(const at::Tensor& x, int64_t dim) const;
  // The local frames of x, which covers all frames.
  at::Tensor local_frames(const at::Tensor& x, int64_t dim) const;
  // The number of local rows of an image of `rows` rows. A row of the grid has `of_each` of them; the last
  // one may have fewer.
  int64_t local_rows(int64_t rows, int64_t of_each) const;
  // The local part of another sequence: [.., L, ..] -> [.., l, ..]. Its tokens are dealt to patches and ranks
  // like lines of the grid, so that in a step each token passes through each block once.
  at::Tensor local_other(const at::Tensor& x, int64_t dim) const;
  int64_t local_other_length(int64_t length) const { return local_other_length(length, run_); }
  // The same for other patches than the current ones.
  int64_t local_other_length(int64_t length, Range patches) const;
  // The local parts of other sequences that have a length of their own in each sample: x [B, L, C], of which
  // sample b has the first lengths[b] tokens -> [B, l, C]. L is the longest length, l the longest local part;
  // the values after a sample's part are unspecified but finite.
  at::Tensor local_other(const at::Tensor& x, at::ArrayRef<int64_t> lengths) const;

  // Attention between the tokens of the grid -> [B, n, H * D]. Queries attend to the tokens of the current
  // patches. They also attend to those of other patches, and with displaced patches those of other ranks,
  // with the keys and values that this layer last saw (one denoising step ago); tokens it never saw are left
  // out.
  at::Tensor attention(const QueriesKeysValues& own, int64_t depth, Over over = Over::kAll);
  // The same as attention() on another scale of the grid, cut at the same places.
  at::Tensor attention(const QueriesKeysValues& own, int64_t depth, const parallel::Cut& cut);
  // Attention within frames or along them, with its layers: x [B, n, C] -> [B, n, C]. The layers get other
  // tokens than the local ones if that saves messages. `angles` [T, D / 2, 2] by frame are passed to the
  // layers as those of their tokens; they may be undefined.
  at::Tensor axial_attention(const at::Tensor& x, int64_t depth, Over over, const at::Tensor& angles,
                             const AttentionLayers& layers);
  // Attention over the grid joined with another sequence of L tokens, of which `other` is the local part (see
  // local_other()) -> the results for both: [B, n, H * D] and [B, l, H * D].
  std::pair<at::Tensor, at::Tensor> joint_attention(const QueriesKeysValues& own,
                                                    const QueriesKeysValues& other, int64_t other_length,
                                                    int64_t depth);
  // The same if the other sequence has a different length in each sample, as in local_other(). A sample
  // attends only to its own tokens, exactly as it does alone; the result after them is zero. `other` may
  // begin with the local part of an additional sequence, which has `first` tokens in all samples.
  std::pair<at::Tensor, at::Tensor> joint_attention(const QueriesKeysValues& own,
                                                    const QueriesKeysValues& other,
                                                    at::ArrayRef<int64_t> other_lengths, int64_t depth,
                                                    int64_t first = 0);

  // ---- Called by the denoising loop.

  const parallel::Cut& cut() const { return cut_; }
  int64_t rank() const { return groups_.all.rank; }  // in the cut
  // The number of local tokens of some patches, including attached ones.
  int64_t local_length(Range patches) const {
    return TokenSequence(cut_, groups_, patches, Over::kAll, {attached_}).length(rank());
  }
  const comm::Group& group() const { return groups_.all; }
  // Exchanges data for the next step; null if ranks wait for each other's data in every step.
  parallel::DisplacedExchange* displaced() const { return displaced_.get(); }
  // Starts a step out of `steps`.
  void begin(int64_t step, int64_t steps) {
    if (displaced_) displaced_->begin(step, steps);
  }
  // Completes pending exchanges. Must be called on all ranks if a run ends before its last step.
  void drain() {
    if (displaced_) displaced_->drain();
  }
  // Limits how much of their input convolutions copy at once, until the next call.
  void limit_convolutions(const ops::ConvBlocks& blocks) { conv_blocks_ = blocks; }
  const ops::ConvBlocks& conv_blocks() const { return conv_blocks_; }
  const Range& run() const { return run_; }
  // Selects the current patches. They must come in order.
  void enter(Range patches) { run_ = patches; }
  // Selects the block whose attention comes next. Calls within a block are identified by their order.
  void enter_block(int64_t block) {
    for (const auto& each : attention_) each->enter_block(block);
  }

 private:
  // Whether ranks, or patches, hold only parts of frames, or of places across frames.
  bool ranks_divide(Over over) const;
  bool patches_divide(Over over) const;
  const TokenGroups& groups_of(Over over) const { return ranks_divide(over) ? groups_ : alone_; }
  TokenSequence sequence(Over over) const {
    std::vector<int64_t> beside;
    if (attached_ > 0) beside.push_back(attached_);
    return {cut_, groups_of(over), run_, over, std::move(beside)};
  }
  // Appends the ranges of local tokens among `count` beside the grid, which follow `before` other tokens.
  void add_beside(std::vector<Range>& ranges, int64_t count, int64_t before) const;
  std::vector<Range> ranges_beside(int64_t count) const;
  TokenAttention& strategy(Over over) const { return *attention_[static_cast<size_t>(over)]; }
  at::Tensor attend(const QueriesKeysValues& own, int64_t depth, const TokenSequence& sequence, Over over);
  // Joint attention with other sequences of lengths `others`, whose local parts follow each other.
  std::pair<at::Tensor, at::Tensor> joint(const QueriesKeysValues& own, const QueriesKeysValues& other,
                                          at::ArrayRef<int64_t> others, int64_t depth);
  // The angles [T, D / 2, 2] of frames, expanded to local tokens, and to those that this rank has with DSP.
  at::Tensor of_local_tokens(const at::Tensor& angles) const;
  at::Tensor of_frames_together(const at::Tensor& angles) const;

  parallel::Cut cut_;
  TokenGroups groups_, alone_;
  std::unique_ptr<parallel::DisplacedExchange> displaced_;
  std::array<std::unique_ptr<TokenAttention>, kOvers.size()> attention_;  // by Over
  ops::ConvBlocks conv_blocks_;
  Range run_;
  int64_t attached_ = 0;  // R
};

}  // namespace tessera::nn
