// What a mistyped word may have been meant for.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::cli {

// The word of `known` that begins with `word`, or that is nearest by edit distance; nothing when none is
// near.
std::optional<std::string> nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace tessera::cli
