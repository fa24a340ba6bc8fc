#include "cli/field_options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>

namespace tessera::cli {
namespace {

// These options have more than one spelling.
const std::map<std::string, std::string> kSpecial = {
    {"prompt", "PROMPT,--prompt"}, {"output", "-o,--output"}, {"quiet", "-q,--quiet"}};

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// The negated option is "--no-resolution-binning", not "--no-use-resolution-binning".
std::string without_use(const std::string& name) {
  return name.starts_with("use_") ? name.substr(4) : name;
}

// Returns the number, or the text if it is none; check_value() then says what is expected.
template <typename Number>
Json number_in(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end ? Json(value) : Json(text);
}

// Reads "14 14" and "14,14".
template <typename Number>
Json numbers_in(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  Json numbers = Json::array();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) numbers.push_back(number_in<Number>(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers.empty() ? Json(text) : numbers;
}

// "14", "-1", "2.5"
bool is_number(const std::string& word) {
  const bool begins = word.find_first_of("0123456789") <= word.find_first_not_of("-.");
  return begins && number_in<double>(word).is_number();
}

std::string title(FieldGroup group) {
  switch (group) {
    case FieldGroup::kPrompt:
      return "Prompt";
    case FieldGroup::kImage:
      return "Image";
    case FieldGroup::kVideo:
      return "Video";
    case FieldGroup::kSampling:
      return "Sampling";
    case FieldGroup::kModel:
      return "Model";
    case FieldGroup::kOutput:
      return "Output";
    case FieldGroup::kMemory:
      return "Memory";
    case FieldGroup::kMachine:
      return "Machine";
    case FieldGroup::kDegrees:
      return "Parallel degrees";
    case FieldGroup::kParallel:
      return "Parallel methods";
    case FieldGroup::kLaunch:
      return "Launch and messages";
  }
  return "";
}

// Where the help has a group: what is for videos alone comes after what is for both.
int place(FieldGroup group) {
  if (group == FieldGroup::kSampling) return static_cast<int>(FieldGroup::kVideo);
  if (group == FieldGroup::kVideo) return static_cast<int>(FieldGroup::kSampling);
  return static_cast<int>(group);
}

std::string names_of(const FieldInfo& info) {
  const auto special = kSpecial.find(info.name);
  return special == kSpecial.end() ? option_name(info.name) : special->second;
}

// Breaks lines between words, so that the help is at most 110 columns wide.
std::string wrapped(std::string text) {
  constexpr size_t kWidth = 110 - kHelpColumn;
  for (size_t begin = 0; text.size() - begin > kWidth;) {
    const size_t space = text.rfind(' ', begin + kWidth);
    if (space == std::string::npos || space <= begin) break;
    text[space] = '\n';
    begin = space + 1;
  }
  return text;
}

}  // namespace

std::string options_text(const OrderedJson& fields) {
  std::vector<std::string> words;
  for (const auto& [name, value] : fields.items()) {
    if (value.is_boolean()) {
      words.push_back(option_name(name, value.get<bool>()));
    } else {
      words.push_back(fmt::format("{} {}", option_name(name),
                                  value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string help_of(const FieldInfo& info) {
  const std::string allowed = allowed_values(info);
  return wrapped(allowed.empty() ? info.help : fmt::format("{}; {}", info.help, allowed));
}

std::string option_name(const std::string& field, std::optional<bool> value) {
  if (field == "prompt") return "PROMPT";
  if (value == false) return "--no-" + dashed(without_use(field));
  return "--" + dashed(field);
}

void FieldOptions::add(FieldList fields, const std::vector<std::string>& common) {
  const auto common_place = [&](const FieldInfo* info) {
    return std::find(common.begin(), common.end(), info->name) - common.begin();
  };
  std::stable_sort(fields.begin(), fields.end(), [&](const FieldInfo* a, const FieldInfo* b) {
    return std::pair(common_place(a), place(a->group)) < std::pair(common_place(b), place(b->group));
  });
  for (const FieldInfo* info : fields) {
    Given& given = given_[info->name];
    const bool is_common = common_place(info) < std::ssize(common);
    const std::string group = is_common ? "Common options" : title(info->group);
    if (!info->choices.empty()) choices_[option_name(info->name)] = info->choices;
    if (info->kind == FieldKind::kFlag) {
      add_flag(*info, group, given);
    } else {
      add_value(*info, group, given);
    }
  }
}

void FieldOptions::add_value(const FieldInfo& info, const std::string& group, Given& given) {
  const std::string names = names_of(info), help = help_of(info);
  CLI::Option* const option = info.kind == FieldKind::kTexts
                                  ? app_.add_option(names, given.places, help)
                                  : app_.add_option(names, given.place, help)->take_last();
  // The last of several numbers counts, as in scripts that add to a command line; no file is left out unsaid.
  if (info.name == "prompt_file" || info.name == "request" || info.name == "output")
    option->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  option->type_name(info.unit)->group(group);
  // Words after a repeated option's value are prompts, where there are prompts.
  if (info.kind == FieldKind::kTexts && !option->get_positional())
    option->allow_extra_args(info.unit.ends_with("..."))->option_text(info.unit);
  if (info.kind == FieldKind::kIntegers || info.kind == FieldKind::kNumbers) lists_.push_back(names);
}

void FieldOptions::add_flag(const FieldInfo& info, const std::string& group, Given& given) {
  if (!info.is_on) {
    app_.add_flag_callback(
            names_of(info), [&given] { given.flag = true; }, help_of(info))
        ->group(group);
  }
  if (!info.is_on && !info.may_miss) return;
  std::string names = option_name(info.name, false);
  if (without_use(info.name) != info.name) names += ",--no-" + dashed(info.name);
  app_.add_flag_callback(
          names, [&given] { given.flag = false; }, wrapped(info.help_off))
      ->group(group);
}

Json FieldOptions::value_of(const FieldInfo& info, const Values& values) const {
  const auto found = given_.find(info.name);
  if (found == given_.end()) return {};
  const auto& [place, places, flag] = found->second;
  if (flag) return *flag;
  if (!place && places.empty()) return {};
  if (info.kind == FieldKind::kTexts) {
    Json all = Json::array();
    for (const size_t each : places) all.push_back(values.at(each));
    return all;
  }
  const std::string& text = values.at(*place);
  switch (info.kind) {
    case FieldKind::kInteger:
      return number_in<int64_t>(text);
    case FieldKind::kSeed:
      return number_in<uint64_t>(text);
    case FieldKind::kNumber:
      return number_in<double>(text);
    case FieldKind::kIntegers:
      return numbers_in<int64_t>(text);
    case FieldKind::kNumbers:
      return numbers_in<double>(text);
    default:
      return text;
  }
}

bool FieldOptions::takes_list(const std::string& option) const {
  return std::find(lists_.begin(), lists_.end(), option) != lists_.end();
}

size_t list_length(const std::vector<std::string>& words, size_t first) {
  size_t count = 0;
  while (first + count < words.size() && is_number(words[first + count])) ++count;
  return count;
}

}  // namespace tessera::cli
