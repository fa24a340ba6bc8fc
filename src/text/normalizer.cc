#include "text/normalizer.h"

#include "text/tokenizer_parts.h"
#include "text/unicode_versions.h"

namespace tessera::text {

Normalizer::Normalizer(const Json& description, const std::string& where) {
  for (const JsonConfig& part : parse_parts(description, "normalizers", where)) {
    const std::string type = part.string("type");
    if (type == "NFC") {
      steps_.emplace_back(Nfc());
    } else if (type == "Lowercase") {
      steps_.emplace_back(Lowercase());
    } else if (type == "Replace") {
      steps_.emplace_back(Replace{parse_pattern(part), part.string("content")});
    } else {
      unsupported_part(part);
    }
  }
}

std::string Normalizer::normalize(std::string_view text) const {
  std::string result(text);
  for (const auto& step : steps_) result = std::visit([&](const auto& apply) { return apply(result); }, step);
  return result;
}

std::string Normalizer::Nfc::operator()(std::string_view text) const {
  return to_nfc(text);
}

std::string Normalizer::Lowercase::operator()(std::string_view text) const {
  return to_lower_case(text);
}

std::string Normalizer::Replace::operator()(std::string_view text) const {
  std::string result;
  size_t end = 0;
  for (const Regex::Match& match : pattern.find_all(text)) {
    result += text.substr(end, match.begin - end);
    result += content;
    end = match.end;
  }
  return result += text.substr(end);
}

}  // namespace tessera::text
