#include "core/cache_folder.h"

#include <cstdlib>

namespace tessera {

std::optional<std::filesystem::path> cache_folder() {
  const auto from = [](const char* variable, const char* below) -> std::optional<std::filesystem::path> {
    const char* const value = std::getenv(variable);
    if (value == nullptr || !std::filesystem::path(value).is_absolute()) return std::nullopt;
    return std::filesystem::path(value) / below / "tessera";
  };
  const auto own = from("XDG_CACHE_HOME", "");
  return own ? own : from("HOME", ".cache");
}

}  // namespace tessera
