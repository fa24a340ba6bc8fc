#include "samplers/other_names.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace tessera::samplers {
namespace {

// By their names in lower case with dashes, without "k-" and "-gpu", and with "dpm++" for "dpmpp".
const std::map<std::string, std::string> kOtherNames = {{"dpm++-2m", "dpm++"},
                                                        {"dpm++-2m-sde", "dpm++-sde"},
                                                        {"dpm++-2s", "dpm++-singlestep"},
                                                        {"dpm++-2s-a", "dpm++-singlestep"},
                                                        {"dpm++-2s-ancestral", "dpm++-singlestep"},
                                                        {"dpm++-sde", "dpm++-singlestep"},
                                                        {"dpm-2", "kdpm2"},
                                                        {"dpm2", "kdpm2"},
                                                        {"dpm-2-a", "kdpm2-a"},
                                                        {"dpm2-a", "kdpm2-a"},
                                                        {"dpm-2-ancestral", "kdpm2-a"},
                                                        {"dpm2-ancestral", "kdpm2-a"},
                                                        {"euler-ancestral", "euler-a"},
                                                        {"plms", "pndm"},
                                                        {"uni-pc", "unipc"},
                                                        {"uni-pc-bh2", "unipc"}};

void replace_first(std::string& text, const std::string& from, const std::string& to) {
  if (const size_t place = text.find(from); place != std::string::npos) text.replace(place, from.size(), to);
}

}  // namespace

std::pair<std::string, std::string> split_levels(const std::string& name) {
  for (const char* levels : {"karras", "exponential", "beta"}) {
    const std::string ending = std::string("-") + levels;
    if (name.ends_with(ending)) return {name.substr(0, name.size() - ending.size()), levels};
  }
  return {name, ""};
}

std::string translated_name(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) {
    return letter == ' ' || letter == '_' ? '-' : static_cast<char>(std::tolower(letter));
  });
  if (name.starts_with("k-")) name.erase(0, 2);
  replace_first(name, "dpmpp", "dpm++");
  replace_first(name, "dpm++2", "dpm++-2");
  replace_first(name, "-gpu", "");
  const auto [base, levels] = split_levels(name);
  const auto found = kOtherNames.find(base);
  const std::string known = found == kOtherNames.end() ? base : found->second;
  return levels.empty() ? known : known + "-" + levels;
}

}  // namespace tessera::samplers
