// Byte-pair encoding: of the neighbouring symbols of a word, the pair that was merged first in training is
// joined until none is left. Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units",
// 2016 (https://arxiv.org/abs/1508.07909), section 3.2. Bytes come as characters (text/byte_alphabet.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe_vocabulary.h"

namespace tessera::text {

struct BpeOptions {
  // What characters without a token become; nothing when there is none.
  std::optional<std::string> unknown_token = {};
  bool fuse_unknown = false;            // neighbours that are unknown share one
  std::string end_of_word_suffix = {};  // of a word's last character: CLIP's "</w>"
  bool ignore_merges = false;           // a word that is a token is that one, whatever the merges say
};

class Bpe {
 public:
  // Throws Error(kInput) with `where` for a merge whose parts or whole are no tokens, and for an unknown
  // token that is none. Of two merges of one pair the later counts.
  Bpe(TokenMap vocabulary, const std::vector<Merge>& merges, BpeOptions options, const std::string& where);

  // Appends the ids of `word` (well-formed UTF-8) to `ids`, in time that is its length times the logarithm.
  void encode(std::string_view word, std::vector<int64_t>& ids) const;

  std::optional<int64_t> find(std::string_view token) const;
  int64_t num_tokens() const { return static_cast<int64_t>(vocabulary_.size()); }
  int64_t max_id() const { return max_id_; }  // -1 when there is no token

 private:
  struct Product {
    int64_t rank, id;
  };
  struct Symbol {
    int64_t id;
    ptrdiff_t previous, next;  // -1 at the ends
    bool merged_away;
  };

  std::vector<Symbol> symbols(std::string_view word) const;
  void merge(std::vector<Symbol>& symbols) const;
  const Product* product(int64_t left, int64_t right) const;

  TokenMap vocabulary_;
  std::unordered_map<uint64_t, Product> products_;  // by pair
  BpeOptions options_;
  std::optional<int64_t> unknown_id_;
  int64_t max_id_ = -1;
};

}  // namespace tessera::text
