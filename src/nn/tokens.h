// The tokens of a run and the attention between them, on however many ranks they lie (Ulysses, Ring, or both:
// USP, arXiv:2405.07719; displaced patches, arXiv:2402.19481), all at once or patch by patch (PipeFusion,
// arXiv:2405.14430). A model hands in what
// it has at hand and knows nothing of either.
//
// Shapes: B samples, n tokens of the grid at hand (this rank's of the patches under way; all of them on one
// rank), N tokens of the grid, l tokens at hand of another sequence (a text), L all of it, H heads of
// queries, K heads of keys (H where they are not grouped; arXiv:2305.13245), D size of a head. Heads are
// those of this rank's share of the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "comm/group.h"
#include "ops/attention.h"
#include "ops/conv.h"
#include "parallel/displaced.h"
#include "parallel/grid.h"

namespace tessera::nn {

struct QueriesKeysValues {
  at::Tensor q;     // [B, n, H * D]
  at::Tensor k, v;  // [B, n, K * D]; K divides H
};

// Which ranks share the tokens of a run.
struct TokenGroups {
  comm::Group ulysses = {}, ring = {};
  comm::Group all = {};  // both, in the order of the cut; or those of `displaced`
  std::optional<parallel::Displacement> displaced = {};
};

// What a query sees: every token, those of its frame, or those at its place in every frame.
enum class Over { kAll, kSpatial, kTemporal };

// One for a run: it keeps the keys and values of earlier patches.
class Tokens {
 public:
  // A whole grid on one rank.
  explicit Tokens(const parallel::Grid& grid) : Tokens(parallel::Cut(grid), TokenGroups()) {}
  // `cut` is into groups.all.size parts, of which this rank's is that of its number there:
  // ring.rank * ulysses.size + ulysses.rank.
  Tokens(parallel::Cut cut, TokenGroups groups);

  // ---- What models call. All ranks of both groups must call these alike.

  const parallel::Grid& grid() const { return cut_.grid; }
  parallel::Grid held() const { return cut_.held(run_, groups_.all.rank); }  // of the tokens at hand

  // The tokens at hand, out of x of all tokens: [.., N, ..] -> [.., n, ..].
  at::Tensor local(const at::Tensor& x, int64_t dim) const;
  // The frames at hand, out of x of all frames.
  at::Tensor local_frames(const at::Tensor& x, int64_t dim) const;
  // What is at hand of another sequence: [.., L, ..] -> [.., l, ..]. Each rank takes its part of it; with
  // patches, whose every run takes the other sequence along, each takes all.
  at::Tensor local_other(const at::Tensor& x, int64_t dim) const;
  int64_t local_other_length(int64_t length) const;

  // Attention between the tokens of the grid -> [B, n, H * D]. Queries see the tokens of the patches at hand
  // and those of earlier calls as this place in the model last saw them (one denoising step ago), and with
  // displaced patches those of other ranks likewise; what it never saw is left out.
  at::Tensor attention(const QueriesKeysValues& own, int64_t depth, Over over = Over::kAll);
  // The same on another scale of the grid, cut at the same places.
  at::Tensor attention(const QueriesKeysValues& own, int64_t depth, const parallel::Cut& cut);
  // Attention over the grid and another sequence of L tokens together (local_other() of it) -> both
  // sequences' [B, n, H * D] and [B, l, H * D].
  std::pair<at::Tensor, at::Tensor> joint_attention(const QueriesKeysValues& own,
                                                    const QueriesKeysValues& other, int64_t other_length,
                                                    int64_t depth);

  // ---- What the denoising loop calls.

  const parallel::Cut& cut() const { return cut_; }
  int64_t rank() const { return groups_.all.rank; }  // in the cut
  const comm::Group& group() const { return groups_.all; }
  // What ranks tell each other for the next step; null where they wait for each other.
  parallel::DisplacedExchange* displaced() const { return displaced_.get(); }
  // A step of `steps` begins.
  void begin(int64_t step, int64_t steps) {
    if (displaced_) displaced_->begin(step, steps);
  }
  // Where a run ends before its last step, on all ranks alike.
  void drain() {
    if (displaced_) displaced_->drain();
  }
  // How much of their input convolutions copy at once, until this is called with other ones.
  void limit_convolutions(const ops::ConvBlocks& blocks) { conv_blocks_ = blocks; }
  const ops::ConvBlocks& conv_blocks() const { return conv_blocks_; }
  const Range& run() const { return run_; }
  // The patches at hand from now on. They come in their order.
  void enter(Range patches) { run_ = patches; }
  // The block whose attention comes next; a block's calls are told apart by their order.
  void enter_block(int64_t block) { place_ = {block, 0}; }

 private:
  struct CacheEntry {
    std::optional<ops::KvCache> keys_values;  // the other sequence's, then patch after patch
    int64_t seen = 0;                         // from the first one on
  };
  class Sequence;

  at::Tensor attend(const QueriesKeysValues& own, int64_t depth, const Sequence& sequence,
                    const QueriesKeysValues* other, at::Tensor* of_other);
  at::Tensor ring_attend(const QueriesKeysValues& own, int64_t heads, const Sequence& sequence) const;
  const CacheEntry& update_cache(const QueriesKeysValues& own, int64_t depth, const Sequence& sequence,
                                 const QueriesKeysValues* other);
  // Tokens at hand of each rank of the ring, with those of its Ulysses group.
  std::vector<Range> of_ring(const Sequence& sequence) const;

  at::Tensor displaced_attend(const QueriesKeysValues& own, int64_t heads, const Sequence& sequence);

  parallel::Cut cut_;
  TokenGroups groups_;
  std::unique_ptr<parallel::DisplacedExchange> displaced_;
  ops::ConvBlocks conv_blocks_;
  Range run_;
  std::pair<int64_t, int64_t> place_{0, 0};                      // block, call
  std::map<std::pair<int64_t, int64_t>, CacheEntry> kv_caches_;  // empty with one patch
};

}  // namespace tessera::nn
