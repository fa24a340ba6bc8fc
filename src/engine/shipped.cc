#include "engine/shipped.h"

#include <cstdlib>

namespace tessera::engine {

namespace fs = std::filesystem;

std::vector<fs::path> shipped_folders(const std::string& kind, const char* variable) {
  std::vector<fs::path> folders;
  const char* const value = std::getenv(variable);
  if (value && *value) folders.emplace_back(value);
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (!code) {
    const fs::path above = program.parent_path().parent_path();
    folders.push_back(above / "share" / "tessera" / kind);
    folders.push_back(above / kind);
  }
  return folders;
}

}  // namespace tessera::engine
