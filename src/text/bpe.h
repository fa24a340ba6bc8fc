// Byte-pair encoding: joins adjacent symbols of a word, always the pair that was merged first in training,
// until no merge applies. Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units",
// 2016 (https://arxiv.org/abs/1508.07909), section 3.2. Bytes are represented as characters
// (to_byte_alphabet()). Tokens and merges are in vocab.json and merges.txt or in a tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/json.h"
#include "text/tokens.h"

namespace tessera::text {

struct Merge {
  std::string left, right;
};

// Parses an object of tokens and their ids. Throws Error(kInput) with `where` if an id is not a non-negative
// number, belongs to two tokens, or follows a gap of more than 10,000 unused ids.
TokenMap parse_vocabulary(const Json& tokens, const std::string& where);

// Parses merges, in order, from lines "a b"; lines that begin with #version are skipped. Throws Error(kInput)
// with `where` and the line.
std::vector<Merge> parse_merge_lines(std::string_view lines, const std::string& where);

// Parses an array of "a b" or ["a", "b"].
std::vector<Merge> parse_merge_rows(const Json& rows, const std::string& where);

struct BpeOptions {
  // Replaces characters without a token; they are dropped if it is not set.
  std::optional<std::string> unknown_token = {};
  bool fuse_unknown = false;            // adjacent unknown characters share one token
  std::string end_of_word_suffix = {};  // appended to a word's last character: CLIP's "</w>"
  bool ignore_merges = false;           // a word that is a token is not split, whatever the merges
};

class Bpe {
 public:
  // If two merges have the same pair, the later one counts. Throws Error(kInput) with `where` if the parts or
  // the result of a merge, or the unknown token, are not in the vocabulary.
  Bpe(TokenMap vocabulary, const std::vector<Merge>& merges, BpeOptions options, const std::string& where);

  // Appends the ids of `word` (well-formed UTF-8) to `ids`. Takes O(n log n) time for n characters.
  void encode(std::string_view word, std::vector<int64_t>& ids) const;

  std::optional<int64_t> find(std::string_view token) const;
  int64_t num_tokens() const { return static_cast<int64_t>(vocabulary_.size()); }
  int64_t max_id() const { return max_id_; }  // -1 if there are no tokens

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
  std::unordered_map<uint64_t, Product> products_;  // by pair key
  BpeOptions options_;
  std::optional<int64_t> unknown_id_;
  int64_t max_id_ = -1;
};

}  // namespace tessera::text
