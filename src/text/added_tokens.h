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
  bool normalized = false;   // looked for in the normalised text; else in the text as it comes
  bool single_word = false;  // not beside letters, digits and the like
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and that after it
};

class AddedTokens {
 public:
  // A token that was added before gets the new id and flags. One whose text is empty is ignored.
  void add(const AddedToken& token, int64_t id);

  // Calls `visit` with the parts of `text` in order: the id of a token, or nullopt and text between tokens
  // (not empty). Leftmost tokens win, and of those the longest.
  void split(std::string_view text,
             const std::function<void(std::optional<int64_t> id, std::string_view part)>& visit) const;

 private:
  struct Entry {
    AddedToken token;
    int64_t id;
  };

  // The longest token with which `text` begins; nullptr when there is none.
  const Entry* find(std::string_view text) const;

  std::unordered_map<char, std::vector<Entry>> by_first_;  // longest first
};

}  // namespace tessera::text
