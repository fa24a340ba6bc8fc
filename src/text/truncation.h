// Cuts texts that have too many tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

// The end at which tokens are cut; transformers calls it `truncation_side`.
enum class TruncationSide { kRight, kLeft };

// Cuts `ids`, the tokens of `text`, to `room` of them. If it cuts, a warning names the text, the tokenizer
// (`where` is a file in its folder), how many tokens are cut and how many remain (`max_length`, which
// includes the tokens around the text).
void truncate(std::vector<int64_t>& ids, int64_t room, TruncationSide side, std::string_view text,
              int64_t max_length, const std::string& where);

}  // namespace tessera::text
