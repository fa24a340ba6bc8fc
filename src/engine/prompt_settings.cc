#include "engine/prompt_settings.h"

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "core/user_text.h"

namespace tessera::engine {
namespace {

constexpr const char* kReferencePath = "reference_path";
constexpr const char* kMaskStrategy = "mask_strategy";
constexpr const char* kForm = R"(TEXT {"reference_path": "PATHS", "mask_strategy": "NUMBERS"})";

// Where the object begins that ends the prompt, or npos.
size_t object_at(const std::string& prompt) {
  const auto is_object = [&](size_t begin) {
    return Json::accept(prompt.begin() + static_cast<ptrdiff_t>(begin), prompt.end());
  };
  size_t begin = prompt.find('{');
  while (begin != std::string::npos && !is_object(begin)) begin = prompt.find('{', begin + 1);
  return begin;
}

}  // namespace

PromptSettings split_settings(const std::string& prompt) {
  const size_t begin = object_at(prompt);
  PromptSettings settings{.text = prompt.substr(0, begin)};
  if (begin == std::string::npos) {
    const size_t brace = std::min(prompt.find('{'), prompt.size());
    for (const char* name : {kReferencePath, kMaskStrategy}) {
      if (prompt.find(name, brace) != std::string::npos)
        usage_error(field("prompt"), "'{}' has settings that are not JSON at its end; the form is {}",
                    printable(prompt), kForm);
    }
    return settings;
  }
  const Json object = Json::parse(prompt.substr(begin));
  for (const auto& [name, value] : object.items()) {
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

}  // namespace tessera::engine
