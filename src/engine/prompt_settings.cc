#include "engine/prompt_settings.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/user_text.h"

namespace tessera::engine {
namespace {

constexpr const char* kReferencePath = "reference_path";
constexpr const char* kMaskStrategy = "mask_strategy";
constexpr const char* kForm = R"(TEXT {"reference_path": "PATHS", "mask_strategy": "NUMBERS"})";

// Deeper braces are a text.
constexpr int kMostDepth = 100;

// Where the object ends that begins at `begin`, by its braces and quotes alone, or npos. The limit of depth
// keeps a search from every brace of a prompt linear in its length.
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

std::vector<std::string> split_paths(const std::string& text) {
  std::vector<std::string> paths;
  for (size_t begin = 0; begin <= text.size() && !text.empty();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    std::string path = text.substr(begin, end - begin);
    path.erase(0, path.find_first_not_of(' '));
    path.erase(path.find_last_not_of(' ') + 1);
    paths.push_back(std::move(path));
    begin = end + 1;
  }
  return paths;
}

std::string paths_without_folders(const std::string& paths) {
  std::string names;
  for (const std::string& path : split_paths(paths)) {
    if (!names.empty()) names += ';';
    names += std::filesystem::path(path).filename().string();
  }
  return names;
}

std::string prompt_without_folders(const std::string& prompt) {
  const PromptSettings settings = split_settings(prompt);
  const std::string paths = settings.reference_path.value_or("");
  if (paths.find('/') == std::string::npos) return prompt;
  OrderedJson object = {{kReferencePath, paths_without_folders(paths)}};
  if (settings.mask_strategy) object[kMaskStrategy] = *settings.mask_strategy;
  return settings.text + object.dump();
}

}  // namespace tessera::engine
