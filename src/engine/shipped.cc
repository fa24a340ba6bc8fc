#include "engine/shipped.h"

#include <cstdlib>

#include "core/folders.h"

namespace tessera::engine {

namespace fs = std::filesystem;

std::vector<fs::path> shipped_folders(const std::string& kind, const char* variable) {
  std::vector<fs::path> folders;
  const char* const value = std::getenv(variable);
  if (value && *value) folders.emplace_back(value);
  for (const fs::path& prefix : install_prefixes()) {
    folders.push_back(prefix / "share" / "tessera" / kind);
    folders.push_back(prefix / kind);
  }
  return folders;
}

}  // namespace tessera::engine
