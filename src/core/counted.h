// Numbers of things, as messages name them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Returns "1 rank", "2 ranks", "2 batches": the number with the noun, whose plural is regular.
inline std::string counted(int64_t count, std::string_view noun) {
  const bool hisses = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : hisses ? "es" : "s");
}

}  // namespace tessera
