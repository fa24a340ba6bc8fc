#include "core/error.h"

#include <string_view>

namespace tessera {

Error::Error(ErrorKind kind, const std::string& where, const std::string& what)
    : Error(kind, fmt::format("[{}] {}", where, what)) {}

Error::Error(ErrorKind kind, std::string message)
    : std::runtime_error(spell(message)), kind_(kind), message_(std::move(message)) {}

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::string_view path(file);
  if (const size_t at = path.rfind("src/"); at != std::string_view::npos) path.remove_prefix(at);
  throw InternalError(fmt::format("{}:{}: check '{}' failed: {}", path, line, condition, message));
}

}  // namespace tessera
