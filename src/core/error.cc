#include "core/error.h"

#include <string_view>

namespace tessera {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::string_view path(file);
  if (const size_t at = path.rfind("src/"); at != std::string_view::npos) path.remove_prefix(at);
  throw InternalError(fmt::format("{}:{}: check '{}' failed: {}", path, line, condition, message));
}

}  // namespace tessera
