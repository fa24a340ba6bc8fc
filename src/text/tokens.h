// What tokenizers have in common: vocabularies, tokens that are recognised in the text itself, and the
// truncation of texts with too many tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::text {

struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view token) const { return std::hash<std::string_view>()(token); }
};

// A vocabulary: the ids of tokens, found without copying the text.
using TokenMap = std::unordered_map<std::string, int64_t, TokenHash, std::equal_to<>>;

struct AddedToken {
  std::string text;
  bool normalized = false;   // matched in the normalised text; else in the raw text
  bool single_word = false;  // must not be next to word characters (letters, digits, ...)
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
};

// Whether one of `tokens` has this text.
bool has_text(const std::vector<AddedToken>& tokens, std::string_view text);

// Tokens that are recognised before the vocabulary's segmentation: `</s>`, `<|endoftext|>`.
class AddedTokens {
 public:
  using Normalize = std::function<std::string(std::string_view text)>;
  using Visit = std::function<void(std::optional<int64_t> id, std::string_view part)>;

  // Adds a token, or replaces the id and flags of the one with the same text. The text is normalised if the
  // token is matched in normalised text. Empty texts are ignored.
  void add(const AddedToken& token, int64_t id);

  // Finds the tokens in the raw text, normalises the text between them, and finds there the tokens that are
  // matched in normalised text. Calls `visit` with the parts of `text` in order: the id of a token, or
  // nullopt and the (non-empty) normalised text between tokens. The leftmost token wins, then the longest.
  void split(std::string_view text, const Normalize& normalize, const Visit& visit) const;

 private:
  struct Entry {
    AddedToken token;
    int64_t id;
  };

  using Table = std::unordered_map<char, std::vector<Entry>>;  // by the first byte; longest first

  // Returns the longest token with which `text` begins, or nullptr.
  static const Entry* find(const Table& table, std::string_view text);
  static void split(const Table& table, std::string_view text, const Visit& visit);

  Table raw_, normalized_;
};

// The end at which tokens are cut; transformers calls it `truncation_side`.
enum class TruncationSide { kRight, kLeft };

// Cuts `ids`, the tokens of `text`, to `room` of them. If it cuts, a warning names the text, the tokenizer
// (`where` is a file in its folder), how many tokens are cut and how many remain (`max_length`, which
// includes the tokens around the text).
void truncate(std::vector<int64_t>& ids, int64_t room, TruncationSide side, std::string_view text,
              int64_t max_length, const std::string& where);

}  // namespace tessera::text
