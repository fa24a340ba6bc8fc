// A prompt, or a negative prompt, of a picture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::models {

struct Prompt {
  std::string text;  // UTF-8
  // For the second text encoder and those after it; where absent, they take `text`.
  std::vector<std::optional<std::string>> others = {};
  // True for a negative prompt that was not given: it is the empty prompt, or, for some models, zeros instead
  // of an encoded text.
  bool is_absent = false;
  // The prompt whose unconditional branch this is, for models that have learned that branch's text: it is as
  // long as the prompt.
  std::optional<std::string> null_of = {};
  int64_t clip_skip = 0;       // last layers of the text encoders to skip
  bool clean_caption = false;  // encode text::clean_caption(text), if the model can

  bool operator==(const Prompt&) const = default;

  // What the text encoder `i`, counted from 0, takes: a prompt with one text.
  Prompt of_encoder(size_t i) const {
    Prompt own = *this;
    own.others.clear();
    if (i > 0 && i <= others.size()) own.text = others[i - 1].value_or(text);
    return own;
  }
};

// Returns the text for the prompt `index` from `texts`, which holds one for all or one for each; nothing if
// it is empty.
inline std::optional<std::string> text_of(const std::vector<std::string>& texts, size_t index) {
  if (texts.empty()) return std::nullopt;
  return texts.size() == 1 ? texts.front() : texts.at(index);
}

}  // namespace tessera::models
