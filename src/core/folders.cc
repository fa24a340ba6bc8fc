#include "core/folders.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <system_error>

namespace tessera {

namespace fs = std::filesystem;

fs::path own_path() {
  std::error_code code;
  Dl_info info = {};
  void* map = nullptr;
  const bool is_known =
      ::dladdr1(reinterpret_cast<const void*>(&own_path), &info, &map, RTLD_DL_LINKMAP) != 0 &&
      map != nullptr;
  // The loader has no name for the program itself.
  const char* const name = is_known ? static_cast<const link_map*>(map)->l_name : "";
  return fs::canonical(*name ? name : "/proc/self/exe", code);
}

std::vector<fs::path> install_prefixes() {
  std::vector<fs::path> prefixes;
  if (const char* const prefix = std::getenv("TESSERA_PREFIX"); prefix && *prefix)
    prefixes.emplace_back(prefix);
  if (const fs::path own = own_path(); !own.empty()) prefixes.push_back(own.parent_path().parent_path());
  return prefixes;
}

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
