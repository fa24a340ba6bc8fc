// What a picture is to show, or to keep away from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::models {

struct Prompt {
  std::string text;                        // UTF-8
  std::optional<std::string> second = {};  // for a second text encoder; it gets `text` where there is none
  // A negative prompt that nobody gave: the empty one, or with some models no text at all.
  bool is_absent = false;
  int64_t clip_skip = 0;  // layers at the end of the text encoders that are left out

  bool operator==(const Prompt&) const = default;
};

}  // namespace tessera::models
