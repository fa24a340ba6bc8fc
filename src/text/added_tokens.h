// Tokens that are recognised in the text itself, before the vocabulary's segmentation: `</s>`,
// `<|endoftext|>`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::text {

struct AddedToken {
  std::string text;
  bool normalized = false;   // matched in the normalised text; else in the raw text
  bool single_word = false;  // must not be next to word characters (letters, digits, ...)
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
};

class AddedTokens {
 public:
  // Adds a token, or replaces the id and flags of one with the same text. Empty texts are ignored.
  void add(const AddedToken& token, int64_t id);

  // Calls `visit` with the parts of `text` in order: the id of a token, or nullopt and the (non-empty) text
  // between tokens. The leftmost token wins, then the longest.
  void split(std::string_view text,
             const std::function<void(std::optional<int64_t> id, std::string_view part)>& visit) const;

 private:
  struct Entry {
    AddedToken token;
    int64_t id;
  };

  // Returns the longest token with which `text` begins, or nullptr.
  const Entry* find(std::string_view text) const;

  std::unordered_map<char, std::vector<Entry>> by_first_;  // longest first
};

}  // namespace tessera::text
