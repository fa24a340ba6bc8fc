#include "text/t5_tokenizer.h"

#include "core/error.h"
#include "core/text.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr int64_t kUnknownId = 2;
constexpr std::string_view kSpace = "\u2581";
constexpr char32_t kSpaceCharacter = U'\u2581';

}  // namespace

T5Tokenizer::T5Tokenizer(T5TokenizerFiles files)
    : where_(files.where),
      truncation_side_(files.truncation_side),
      charsmap_(files.model.charsmap.empty() ? Charsmap() : Charsmap(files.model.charsmap, files.where)),
      unigram_(std::move(files.model.pieces), kUnknownId, files.where),
      vocabulary_size_(unigram_.size()) {
  std::optional<int64_t> end_id;
  for (AddedToken& token : files.tokens) {
    if (find_invalid_utf8(token.text)) input_error(files.where, "a special token is not UTF-8");
    const int64_t id = unigram_.find(token.text).value_or(vocabulary_size_);
    if (id == vocabulary_size_) ++vocabulary_size_;
    if (token.text == files.end_token) end_id = id;
    if (token.normalized) token.text = charsmap_.normalize(token.text);
    tokens_.add(token, id);
  }
  TESSERA_CHECK(end_id.has_value(), "'{}' is not among the tokens of {}", files.end_token, files.where);
  end_id_ = *end_id;
}

std::vector<int64_t> T5Tokenizer::encode(std::string_view text, int64_t max_length) const {
  TESSERA_CHECK(max_length >= 1, "max_length {}", max_length);
  require_utf8(text, field("prompt"));
  std::vector<int64_t> ids;
  const auto normalize = [&](std::string_view part) { return charsmap_.normalize(part); };
  tokens_.split(text, normalize, [&](std::optional<int64_t> id, std::string_view part) {
    if (id) return ids.push_back(*id);
    encode_words(part, ids);
  });
  truncate(ids, max_length - 1, truncation_side_, text, max_length, where_);
  ids.push_back(end_id_);
  return ids;
}

void T5Tokenizer::encode_words(std::string_view text, std::vector<int64_t>& ids) const {
  std::string word;
  const auto finish = [&] {
    unigram_.encode(word, ids);
    word.clear();
  };
  for_each_character(text, [&](char32_t character, std::string_view bytes) {
    if (is_white_space(character)) return finish();
    // A U+2581 in the text starts a word too, and is a word by itself if nothing follows it.
    if (character == kSpaceCharacter) {
      finish();
    } else if (word.empty()) {
      word = kSpace;
    }
    word += bytes;
  });
  finish();
}

}  // namespace tessera::text
