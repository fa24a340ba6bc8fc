#include "cli/field_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>

namespace tessera::cli {
namespace {

constexpr char kMark = '\x01';

// Options that are spelled in more ways than one.
const std::map<std::string, std::string> kSpecial = {
    {"prompt", "PROMPT,--prompt"}, {"output", "-o,--output"}, {"quiet", "-q,--quiet"}};

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// What is off is "--no-resolution-binning", not "--no-use-resolution-binning".
std::string without_use(const std::string& name) {
  return name.starts_with("use_") ? name.substr(4) : name;
}

// The number, or the text where it is none: check_value() will say what it should be.
template <typename Number>
Json number_in(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end ? Json(value) : Json(text);
}

// "14 14" and "14,14".
Json integers_in(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  Json numbers = Json::array();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) numbers.push_back(number_in<int64_t>(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers.empty() ? Json(text) : numbers;
}

std::string without_guard(const std::string& text) {
  return text.starts_with(kMark) ? text.substr(1) : text;
}

bool is_integer(const std::string& word) {
  const size_t sign = word.starts_with("-") ? 1 : 0;
  return word.size() > sign && std::all_of(word.begin() + static_cast<int64_t>(sign), word.end(),
                                           [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

std::string option_name(const std::string& field, std::optional<bool> value) {
  if (field == "prompt") return "PROMPT";
  if (value == false) return "--no-" + dashed(without_use(field));
  return "--" + dashed(field);
}

std::string guard_brackets(const std::string& text) {
  return text.starts_with("[") ? kMark + text : text;
}

void FieldOptions::add(const FieldInfo& info) {
  Given& given = given_[info.name];
  if (info.kind == FieldKind::kFlag) return add_flag(info, given);
  const auto special = kSpecial.find(info.name);
  const std::string names = special == kSpecial.end() ? option_name(info.name) : special->second;
  if (info.kind == FieldKind::kTexts) {
    CLI::Option* const option = app_.add_option(names, given.texts, info.help)->type_name(info.unit);
    // Words after its value are prompts.
    if (!option->get_positional()) option->allow_extra_args(false);
    return;
  }
  CLI::Option* const option =
      app_.add_option(names, given.text, info.help)->type_name(info.unit)->take_last();
  if (!info.group.empty()) option->group(info.group);
  if (info.kind == FieldKind::kIntegers) lists_.push_back(names);
}

void FieldOptions::add_flag(const FieldInfo& info, Given& given) {
  const auto special = kSpecial.find(info.name);
  if (!info.is_on) {
    const std::string names = special == kSpecial.end() ? option_name(info.name) : special->second;
    CLI::Option* const option = app_.add_flag_callback(
        names, [&given] { given.flag = true; }, info.help);
    if (!info.group.empty()) option->group(info.group);
  }
  if (!info.is_on && !info.may_miss) return;
  std::string names = option_name(info.name, false);
  if (without_use(info.name) != info.name) names += ",--no-" + dashed(info.name);
  app_.add_flag_callback(
          names, [&given] { given.flag = false; }, info.help_off)
      ->group(info.group);
}

Json FieldOptions::value_of(const FieldInfo& info) const {
  const auto found = given_.find(info.name);
  if (found == given_.end()) return {};
  const auto& [text, texts, flag] = found->second;
  if (flag) return *flag;
  if (!text && texts.empty()) return {};
  switch (info.kind) {
    case FieldKind::kInteger:
      return number_in<int64_t>(*text);
    case FieldKind::kSeed:
      return number_in<uint64_t>(*text);
    case FieldKind::kNumber:
      return number_in<double>(*text);
    case FieldKind::kIntegers:
      return integers_in(*text);
    case FieldKind::kTexts: {
      Json all = Json::array();
      for (const std::string& each : texts) all.push_back(without_guard(each));
      return all;
    }
    default:
      return without_guard(*text);
  }
}

bool FieldOptions::takes_list(const std::string& option) const {
  return std::find(lists_.begin(), lists_.end(), option) != lists_.end();
}

size_t list_length(const std::vector<std::string>& words, size_t first) {
  size_t count = 0;
  while (first + count < words.size() && is_integer(words[first + count])) ++count;
  return count;
}

}  // namespace tessera::cli
