// The consecutive blocks of a denoiser that are loaded here. The process with the first block also embeds the
// latents; the one with the last block also predicts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/range.h"

namespace tessera::models {

class LocalBlocks {
 public:
  // Takes all of `blocks`, or the range `own` of them.
  explicit LocalBlocks(int64_t blocks, std::optional<Range> own = {})
      : blocks_(blocks), own_(own.value_or(Range{0, blocks})) {
    TESSERA_CHECK(own_.begin >= 0 && own_.end() <= blocks_, "blocks {} to {} of {}", own_.begin, own_.end(),
                  blocks_);
  }

  bool takes_latents() const { return own_.begin == 0; }
  bool predicts() const { return own_.end() == blocks_; }
  bool is_all() const { return own_.length == blocks_; }
  const Range& blocks() const { return own_; }

 private:
  int64_t blocks_;
  Range own_;
};

// Holds the local blocks, indexed by their number in the whole model.
template <typename Block>
class Blocks {
 public:
  // make(i) returns block `i`.
  template <typename Make>
  Blocks(const LocalBlocks& local_blocks, const Make& make) : begin_(local_blocks.blocks().begin) {
    for (int64_t i = begin_; i < local_blocks.blocks().end(); ++i) blocks_.push_back(make(i));
  }

  const Block& operator[](int64_t i) const { return blocks_.at(static_cast<size_t>(i - begin_)); }
  auto begin() const { return blocks_.begin(); }
  auto end() const { return blocks_.end(); }
  int64_t first() const { return begin_; }

 private:
  int64_t begin_;
  std::vector<Block> blocks_;
};

}  // namespace tessera::models
