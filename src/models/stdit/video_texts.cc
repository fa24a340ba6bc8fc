// How Open-Sora reads the texts of a request.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/text.h"
#include "models/stdit/video_settings.h"

namespace tessera::models {
namespace {

constexpr const char* kReferencePath = "reference_path";
constexpr const char* kMaskStrategy = "mask_strategy";
constexpr const char* kForm = R"(TEXT {"reference_path": "PATHS", "mask_strategy": "NUMBERS"})";

// Deeper braces count as text.
constexpr int kMostDepth = 100;

constexpr size_t kNumbers = 6;  // the numbers of a given range

// Returns where the object that begins at `begin` ends, judging only by braces and quotes, or npos. The limit
// of depth makes searching from every brace of a prompt linear in its length.
size_t end_of_object(const std::string& prompt, size_t begin) {
  int depth = 0;
  bool is_quoted = false;
  for (size_t i = begin; i < prompt.size(); ++i) {
    const char c = prompt[i];
    if (is_quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      is_quoted = !is_quoted;
    } else if (!is_quoted && c == '{') {
      if (++depth > kMostDepth) return std::string::npos;
    } else if (!is_quoted && c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string::npos;
}

std::optional<Json> parse_object(const std::string& text) {
  try {
    return parse_json(text, "prompt");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// An object that ends a prompt, and where it begins.
struct Found {
  size_t begin;
  Json object;
};

std::optional<Found> find_object(const std::string& prompt) {
  const size_t end = prompt.find_last_not_of(" \t\r\n") + 1;
  for (size_t begin = prompt.find('{'); begin != std::string::npos; begin = prompt.find('{', begin + 1)) {
    if (end_of_object(prompt, begin) != end) continue;
    if (auto object = parse_object(prompt.substr(begin, end - begin)))
      return Found{begin, std::move(*object)};
  }
  return std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

// Returns the parts between separators, without the spaces around them.
std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(mark, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

template <typename Number>
Number read(std::string_view text, const std::string& entry, const std::string& field) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    usage_error(field, "'{}' holds '{}' where a {}number is expected", entry, text,
                std::is_integral_v<Number> ? "whole " : "");
  return number;
}

GivenRange read_range(std::string_view text, const std::string& field) {
  const std::string entry(text);
  const std::vector<std::string_view> words = split(text, ',');
  if (words.size() > kNumbers)
    usage_error(field,
                "'{}' has {} numbers, at most {}: loop, reference, its start, start, length, edit ratio",
                entry, words.size(), kNumbers);
  GivenRange range;
  int64_t* const integers[] = {&range.loop, &range.reference, &range.reference_start, &range.target_start,
                               &range.length};
  for (size_t i = 0; i < words.size(); ++i) {
    if (i + 1 < kNumbers) {
      *integers[i] = read<int64_t>(words[i], entry, field);
    } else {
      range.edit = read<double>(words[i], entry, field);
    }
  }
  if (range.loop < 0) usage_error(field, "'{}': parts are counted from 0", entry);
  if (range.length < 1) usage_error(field, "'{}': its length must be 1 or more, got {}", entry, range.length);
  if (!(range.edit >= 0 && range.edit <= 1))
    usage_error(field, "'{}': its edit ratio must be from 0 to 1, got {}", entry, range.edit);
  return range;
}

}  // namespace

PromptSettings split_settings(const std::string& prompt) {
  const std::optional<Found> found = find_object(prompt);
  PromptSettings settings{.text = prompt.substr(0, found ? found->begin : std::string::npos)};
  if (!found) {
    const size_t brace = std::min(prompt.find('{'), prompt.size());
    for (const char* name : {kReferencePath, kMaskStrategy}) {
      if (prompt.find(name, brace) != std::string::npos)
        usage_error(field("prompt"), "'{}' has settings that are not JSON at its end; the form is {}",
                    printable(prompt), kForm);
    }
    return settings;
  }
  for (const auto& [name, value] : found->object.items()) {
    if (name != kReferencePath && name != kMaskStrategy)
      usage_error(field("prompt"), "a prompt has no setting '{}', as at the end of '{}'; the form is {}",
                  printable(name), printable(prompt), kForm);
    if (!value.is_string())
      usage_error(field("prompt"), "the value of '{}' must be text in quotes, got {}; the form is {}", name,
                  printable(value.dump()), kForm);
    (name == kReferencePath ? settings.reference_path : settings.mask_strategy) = value.get<std::string>();
  }
  return settings;
}

std::vector<std::string> split_paths(const std::string& paths) {
  const std::vector<std::string_view> parts = split(paths, ';');
  return paths.empty() ? std::vector<std::string>() : std::vector<std::string>(parts.begin(), parts.end());
}

std::string paths_without_folders(const std::string& paths) {
  std::vector<std::string> names = split_paths(paths);
  for (std::string& each : names) each = std::filesystem::path(each).filename().string();
  return fmt::format("{}", fmt::join(names, ";"));
}

std::string prompt_without_folders(const std::string& prompt) {
  const PromptSettings settings = split_settings(prompt);
  const std::string paths = settings.reference_path.value_or("");
  if (paths.find('/') == std::string::npos) return prompt;
  OrderedJson object = {{kReferencePath, paths_without_folders(paths)}};
  if (settings.mask_strategy) object[kMaskStrategy] = *settings.mask_strategy;
  return settings.text + object.dump();
}

std::string prompt_of_loop(const std::string& prompt, int64_t loop) {
  if (!prompt.starts_with("|0|")) return prompt;
  const auto refuse = [&] {
    usage_error(field("prompt"),
                "a prompt for the parts of a long video has the form |0|TEXT|3|TEXT, with parts in rising "
                "order, got '{}'",
                prompt);
  };
  std::string text;
  int64_t last = -1;
  for (size_t begin = 1; begin <= prompt.size();) {
    const size_t middle = prompt.find('|', begin);
    int64_t first = 0;
    const char* const stop = prompt.data() + std::min(middle, prompt.size());
    const auto read = std::from_chars(prompt.data() + begin, stop, first);
    if (middle == std::string::npos || read.ec != std::errc() || read.ptr != stop || first <= last) refuse();
    const size_t end = std::min(prompt.find('|', middle + 1), prompt.size());
    if (first <= loop) text = prompt.substr(middle + 1, end - middle - 1);
    last = first;
    begin = end + 1;
  }
  return std::string(trimmed(text));
}

std::vector<GivenRange> parse_mask_strategy(const std::string& text, const std::string& field) {
  std::vector<GivenRange> ranges;
  if (text.empty()) return ranges;
  for (const std::string_view entry : split(text, ';')) ranges.push_back(read_range(entry, field));
  return ranges;
}

std::string with_scores(const std::string& prompt, const VideoRequest& request) {
  std::string result = prompt;
  const auto append = [&](const char* name, const std::string& value) {
    if (prompt.find(name) == std::string::npos) result += fmt::format(" {} {}.", name, value);
  };
  const double aesthetic = request.aesthetic_score.value_or(0), motion = request.motion_score.value_or(0);
  if (aesthetic > 0) append("aesthetic score:", fmt::format("{:.1f}", aesthetic));
  if (motion > 0) append("motion score:", fmt::format("{:.1f}", motion));
  if (request.camera_motion) append("camera motion:", *request.camera_motion);
  return result;
}

}  // namespace tessera::models
