// Unguessable names.
#pragma once

#include <fmt/format.h>

#include <random>
#include <string>

namespace tessera {

// Returns eight hexadecimal digits for each of `words` 32-bit random words from the system.
inline std::string random_name(int words = 4) {
  std::random_device random;
  std::string name;
  for (int i = 0; i < words; ++i) name += fmt::format("{:08x}", random());
  return name;
}

}  // namespace tessera
