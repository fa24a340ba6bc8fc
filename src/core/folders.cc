#include "core/folders.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace tessera {

namespace fs = std::filesystem;

namespace {

// Tessera's subfolder of the folder that the environment names, otherwise of that one in the user's home.
std::optional<fs::path> own_folder(const char* variable, const char* below_home) {
  const auto from = [](const char* name, const char* below) -> std::optional<fs::path> {
    const char* const value = std::getenv(name);
    if (value == nullptr || !fs::path(value).is_absolute()) return std::nullopt;
    return fs::path(value) / below / "tessera";
  };
  const auto own = from(variable, "");
  return own ? own : from("HOME", below_home);
}

}  // namespace

fs::path own_path() {
  std::error_code code;
  Dl_info info = {};
  void* map = nullptr;
  const bool is_known =
      ::dladdr1(reinterpret_cast<const void*>(&own_path), &info, &map, RTLD_DL_LINKMAP) != 0 &&
      map != nullptr;
  // The loader has no name for the program itself.
  const char* const name = is_known ? static_cast<const link_map*>(map)->l_name : "";
  if (*name) return fs::weakly_canonical(name, code);
  // The kernel appends this to the path of a file that has been deleted or replaced since the start.
  constexpr std::string_view kDeleted = " (deleted)";
  std::string path = fs::read_symlink("/proc/self/exe", code).string();
  if (path.ends_with(kDeleted) && !fs::exists(path, code)) path.resize(path.size() - kDeleted.size());
  return path;
}

std::vector<fs::path> install_prefixes() {
  std::vector<fs::path> prefixes;
  if (const char* const prefix = std::getenv("TESSERA_PREFIX"); prefix && *prefix)
    prefixes.emplace_back(prefix);
  if (const fs::path own = own_path(); !own.empty()) prefixes.push_back(own.parent_path().parent_path());
  return prefixes;
}

std::optional<fs::path> cache_folder() {
  return own_folder("XDG_CACHE_HOME", ".cache");
}

std::optional<fs::path> state_folder() {
  return own_folder("XDG_STATE_HOME", ".local/state");
}

}  // namespace tessera
