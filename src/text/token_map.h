// A vocabulary: the ids of tokens, found without copying the text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace tessera::text {

struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view token) const { return std::hash<std::string_view>()(token); }
};

using TokenMap = std::unordered_map<std::string, int64_t, TokenHash, std::equal_to<>>;

}  // namespace tessera::text
