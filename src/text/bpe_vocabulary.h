// The tokens and merges of a byte-pair encoding, as vocab.json and merges.txt have them or a tokenizer.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/token_map.h"

namespace tessera::text {

struct Merge {
  std::string left, right;
};

// An object of tokens and their ids. Throws Error(kInput) with `where` for an id that is no number from 0 on,
// that two tokens have, or that leaves more than 10,000 below it without a token.
TokenMap parse_vocabulary(const Json& tokens, const std::string& where);

// The merges in their order, as lines "a b"; those that begin with #version are none. Throws Error(kInput)
// with `where` and the line.
std::vector<Merge> parse_merge_lines(std::string_view lines, const std::string& where);

// The same as an array of "a b" or ["a", "b"].
std::vector<Merge> parse_merge_rows(const Json& rows, const std::string& where);

}  // namespace tessera::text
