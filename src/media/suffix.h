// Finds the format of a file by its name.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::media {

// The suffix of the name in lower case.
inline std::string suffix_of(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  for (char& c : suffix) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return suffix;
}

}  // namespace tessera::media
