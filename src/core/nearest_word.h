// Suggests a known word for a mistyped one.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera {

// Returns the word of `known` that begins with `word`, or the nearest by edit distance; nothing when none is
// near.
std::optional<std::string> nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace tessera
