#include "text/tokenizer_parts.h"

#include "core/error.h"

namespace tessera::text {

std::vector<JsonConfig> parse_parts(const Json& description, const std::string& key,
                                    const std::string& where) {
  if (description.is_null()) return {};
  JsonConfig part(description, where);
  if (part.string("type") != "Sequence") return {std::move(part)};
  if (!part.has(key) || !part.values()[key].is_array()) part.fail(key, "an array");
  std::vector<JsonConfig> parts;
  for (const Json& inner : part.values()[key]) {
    for (JsonConfig& found : parse_parts(inner, key, where)) parts.push_back(std::move(found));
  }
  return parts;
}

Regex parse_pattern(const JsonConfig& part) {
  if (!part.has("pattern")) part.fail("pattern", "an object");
  const JsonConfig pattern(part.values()["pattern"], part.where());
  if (pattern.has("String")) return Regex::of_text(pattern.string("String"), part.where());
  return Regex(pattern.string("Regex"), part.where());
}

void unsupported_part(const JsonConfig& part) {
  input_error(part.where(), "the type '{}' is not supported", part.string("type"));
}

}  // namespace tessera::text
