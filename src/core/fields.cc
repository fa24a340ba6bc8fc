#include "core/fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/text.h"

namespace tessera {
namespace {

// Returns the value as messages show it, shortened; texts are quoted.
std::string shown(const Json& value) {
  constexpr size_t kMost = 80;
  std::string text = value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (value.is_number_float()) text = fmt::format("{}", value.get<double>());  // JSON cannot represent NaN
  if (text.size() > kMost) text = std::string(cut_utf8(text, kMost)) + "...";
  text = printable(text);
  return value.is_string() ? fmt::format("'{}'", text) : text;
}

[[noreturn]] void expected(const FieldInfo& info, const std::string& what, const Json& value) {
  usage_error(field(info.name), "expected {}, got {}", what, shown(value));
}

// Returns a list such as "a, b or c".
std::string alternatives(const std::vector<std::string>& words) {
  if (words.size() == 1) return words.front();
  const auto last = words.end() - 1;
  return fmt::format("{} or {}", fmt::join(words.begin(), last, ", "), *last);
}

void check_range(const FieldInfo& info, const Json& value) {
  const auto number = value.get<double>();
  if (!std::isfinite(number)) usage_error(field(info.name), "must be a finite number, got {}", number);
  if (number >= info.least && number <= info.most) return;
  usage_error(field(info.name), "must be {}, got {}", allowed_values(info), shown(value));
}

// Many programs write 64.0 and 1e3 for integers. fp64 holds those below 2^53 exactly.
bool is_whole_float(const Json& value) {
  if (!value.is_number_float()) return false;
  const auto number = value.get<double>();
  return std::trunc(number) == number && std::abs(number) < 0x1p53;
}

void check_integer(const FieldInfo& info, const Json& value) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool is_integer = value.is_number_integer() || is_whole_float(value);
  if (!is_integer || (value.is_number_unsigned() && value.get<uint64_t>() > kMost))
    expected(info, "an integer", value);
  check_range(info, value);
}

void check_number(const FieldInfo& info, const Json& value) {
  if (!value.is_number()) expected(info, "a number", value);
  check_range(info, value);
}

void check_text(const FieldInfo& info, const Json& value) {
  if (!value.is_string()) expected(info, "a text", value);
  const auto text = value.get<std::string>();
  if (const auto position = find_invalid_utf8(text))
    usage_error(field(info.name), "is not valid UTF-8 (byte {})", *position);
  const auto& choices = info.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end())
    expected(info, alternatives(choices), value);
}

// Checks each element of a list, or a single value.
template <typename Check>
void check_list(const FieldInfo& info, const Json& value, const Check& check) {
  if (!value.is_array()) return check(info, value);
  for (const Json& element : value) check(info, element);
}

}  // namespace

std::string allowed_values(const FieldInfo& info) {
  if (!info.choices.empty()) return alternatives(info.choices);
  if (info.kind == FieldKind::kSeed) return fmt::format("from 0 to {}", std::numeric_limits<uint64_t>::max());
  std::string unit = info.unit.size() > 1 ? " " + info.unit : "";
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (std::isinf(info.least))
    return std::isinf(info.most) ? "" : fmt::format("at most {}{}", info.most, unit);
  if (std::isinf(info.most)) return fmt::format("{}{} or more", info.least, unit);
  return fmt::format("from {} to {}{}", info.least, info.most, unit);
}

void check_value(const FieldInfo& info, const Json& value) {
  switch (info.kind) {
    case FieldKind::kFlag:
      if (!value.is_boolean()) expected(info, "true or false", value);
      return;
    case FieldKind::kInteger:
      return check_integer(info, value);
    case FieldKind::kSeed:
      if (!value.is_number_unsigned() &&
          !((value.is_number_integer() || is_whole_float(value)) && value.get<int64_t>() >= 0))
        expected(info, "an integer " + allowed_values(info), value);
      return;
    case FieldKind::kNumber:
      return check_number(info, value);
    case FieldKind::kText:
      return check_text(info, value);
    case FieldKind::kTexts:
      return check_list(info, value, check_text);
    case FieldKind::kIntegers:
      return check_list(info, value, check_integer);
    case FieldKind::kNumbers:
      return check_list(info, value, check_number);
  }
}

void detail::refuse_unknown_field(const std::string& name, const std::vector<std::string>& known) {
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const std::string& each : known) names.push_back(field(each));
  usage_error(field(name), "is not a known field; known fields are {}", fmt::join(names, ", "));
}

const Json& detail::require_object(const Json& json) {
  if (!json.is_object()) usage_error("request", "expected a JSON object, got {}", shown(json));
  return json;
}

}  // namespace tessera
