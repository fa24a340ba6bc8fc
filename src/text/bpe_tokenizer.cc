#include "text/bpe_tokenizer.h"

#include "core/error.h"
#include "text/unicode.h"

namespace tessera::text {

BpeTokenizer::BpeTokenizer(BpeTokenizerFiles files)
    : where_(files.where),
      bpe_(std::move(files.vocabulary), files.merges, files.options, files.where),
      normalizer_(files.normalizer, files.where + ", normalizer"),
      pre_tokenizer_(files.pre_tokenizer, files.where + ", pre_tokenizer"),
      surrounding_(parse_post_processor(files.post_processor, files.where + ", post_processor")),
      truncation_side_(files.truncation_side),
      pads_left_(files.pads_left),
      model_max_length_(files.model_max_length),
      vocabulary_size_(bpe_.max_id() + 1) {
  add_tokens(files);
  for (const auto* ids : {&surrounding_.before, &surrounding_.after}) {
    for (const int64_t id : *ids) {
      if (id < 0 || id >= vocabulary_size_)
        input_error(where_, "the post_processor has the id {}; ids end at {}", id, vocabulary_size_ - 1);
    }
  }
}

void BpeTokenizer::add_tokens(const BpeTokenizerFiles& files) {
  TokenMap added;
  // As in transformers, ids of tokens outside the vocabulary continue from its number of tokens.
  int64_t next = bpe_.num_tokens();
  for (AddedToken token : files.tokens) {
    if (token.text.empty()) continue;
    auto id = bpe_.find(token.text);
    if (!id) {
      if (next <= bpe_.max_id())
        input_error(where_,
                    "'{}' would get the id {}, which another token has: the vocabulary leaves ids out",
                    token.text, next);
      id = next++;
    }
    added.emplace(token.text, *id);
    if (token.normalized) token.text = normalizer_.normalize(token.text);
    tokens_.add(token, *id);
  }
  vocabulary_size_ = std::max(vocabulary_size_, next);
  for (const auto& [token, id] : added) {
    Vectors vectors{token, token};
    for (int i = 1; added.contains(fmt::format("{}_{}", token, i)); ++i)
      vectors.all += fmt::format(" {}_{}", token, i);
    if (vectors.all != token) vectors_.emplace(id, std::move(vectors));
  }

  const auto id_of = [&](const std::string& token) {
    const auto place = added.find(token);
    if (place == added.end())
      input_error(where_, "the special token '{}' is not among the added tokens", token);
    return place->second;
  };
  for (const std::string& token : files.before) surrounding_.before.push_back(id_of(token));
  for (const std::string& token : files.after) surrounding_.after.push_back(id_of(token));
  if (files.pad_token) pad_id_ = id_of(*files.pad_token);
}

std::vector<int64_t> BpeTokenizer::encode(std::string_view text, int64_t max_length,
                                          std::optional<std::string_view> prompt) const {
  const auto& [before, after] = surrounding_;
  const auto num_surrounding = static_cast<int64_t>(before.size() + after.size());
  TESSERA_CHECK(max_length >= num_surrounding, "max_length {}", max_length);
  std::vector<int64_t> ids = ids_of(text);
  truncate(ids, max_length - num_surrounding, truncation_side_, prompt.value_or(text), max_length, where_);
  ids.insert(ids.begin(), before.begin(), before.end());
  ids.insert(ids.end(), after.begin(), after.end());
  return ids;
}

std::vector<int64_t> BpeTokenizer::ids_of(std::string_view text) const {
  require_utf8(text, field("prompt"));
  std::vector<int64_t> ids;
  const auto normalize = [&](std::string_view part) { return normalizer_.normalize(part); };
  tokens_.split(text, normalize, [&](std::optional<int64_t> id, std::string_view part) {
    if (id) return ids.push_back(*id);
    for (const std::string& piece : pre_tokenizer_.split(part)) bpe_.encode(piece, ids);
  });
  return ids;
}

std::string BpeTokenizer::with_all_vectors(std::string_view text) const {
  std::string result(text);
  if (vectors_.empty()) return result;
  std::unordered_map<int64_t, Vectors> left = vectors_;
  for (const int64_t id : ids_of(text)) {
    const auto found = left.extract(id);
    if (found.empty()) continue;
    const auto& [token, all] = found.mapped();
    for (size_t at = result.find(token); at != std::string::npos; at = result.find(token, at + all.size()))
      result.replace(at, token.size(), all);
  }
  return result;
}

std::vector<int64_t> BpeTokenizer::encode_padded(std::string_view text, int64_t length) const {
  if (!pad_id_) input_error(where_, "no file of the tokenizer names a pad token");
  std::vector<int64_t> ids = encode(text, length);
  ids.insert(pads_left_ ? ids.begin() : ids.end(), length - ids.size(), *pad_id_);
  return ids;
}

}  // namespace tessera::text
