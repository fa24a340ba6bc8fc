#include "core/error.h"

#include <algorithm>

namespace tessera {
namespace {

// These control characters do not occur in messages otherwise.
constexpr char kBegin = '\x0e', kEnd = '\x0f';
constexpr std::string_view kTrue = ": true", kFalse = ": false";

// Calls `text` and `name` for the parts of a message, in order.
template <typename Text, typename Name>
void walk(std::string_view message, const Text& text, const Name& name) {
  while (true) {
    const size_t begin = message.find(kBegin);
    text(message.substr(0, begin));
    if (begin == std::string_view::npos) return;
    const size_t end = message.find(kEnd, begin);
    std::string_view inside =
        message.substr(begin + 1, end == std::string_view::npos ? end : end - begin - 1);
    std::optional<bool> value;
    for (const std::string_view flag : {kTrue, kFalse}) {
      if (!inside.ends_with(flag)) continue;
      inside.remove_suffix(flag.size());
      value = flag == kTrue;
    }
    name(std::string(inside), value);
    if (end == std::string_view::npos) return;
    message.remove_prefix(end + 1);
  }
}

}  // namespace

std::string field(std::string_view name) {
  return kBegin + std::string(name) + kEnd;
}

std::string field(std::string_view name, bool value) {
  return kBegin + std::string(name).append(value ? kTrue : kFalse) + kEnd;
}

std::string spell(std::string_view message, const FieldSpelling& spelling) {
  std::string spelled;
  walk(
      message, [&](std::string_view text) { spelled += text; },
      [&](const std::string& name, std::optional<bool> value) { spelled += spelling(name, value); });
  return spelled;
}

std::string spell(std::string_view message) {
  return spell(message, [](std::string name, std::optional<bool> value) {
    if (value) name += *value ? kTrue : kFalse;
    return name;
  });
}

std::vector<std::string> fields_in(std::string_view message) {
  std::vector<std::string> names;
  walk(
      message, [](std::string_view) {},
      [&](const std::string& name, std::optional<bool>) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      });
  return names;
}

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
