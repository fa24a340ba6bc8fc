// The tokens and merges of a byte-pair encoding, from vocab.json and merges.txt or from a tokenizer.json.
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

// Parses an object of tokens and their ids. Throws Error(kInput) with `where` if an id is not a non-negative
// number, belongs to two tokens, or follows a gap of more than 10,000 unused ids.
TokenMap parse_vocabulary(const Json& tokens, const std::string& where);

// Parses merges, in order, from lines "a b"; lines that begin with #version are skipped. Throws Error(kInput)
// with `where` and the line.
std::vector<Merge> parse_merge_lines(std::string_view lines, const std::string& where);

// Parses an array of "a b" or ["a", "b"].
std::vector<Merge> parse_merge_rows(const Json& rows, const std::string& where);

}  // namespace tessera::text
