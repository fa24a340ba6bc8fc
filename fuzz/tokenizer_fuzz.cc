// Fuzzes the files of a checkpoint's tokenizer. The first byte selects the kind of the rest: 's' a
// SentencePiece model, 'j' a tokenizer.json of T5, 'c' a precompiled character map; 'b' a tokenizer.json of a
// BPE tokenizer, 'v' a vocab.json, a zero byte and a merges.txt, 'p' a pattern, a zero byte and a text, 't' a
// text for CLIP's tokenizer. Accepted files must be able to encode text.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/text.h"
#include "fuzz/check.h"
#include "text/bpe_tokenizer.h"
#include "text/bpe_tokenizer_files.h"
#include "text/regex.h"
#include "text/sentencepiece_model.h"
#include "text/t5_tokenizer.h"

namespace tessera {
namespace {

using fuzz::accepts;
using fuzz::require;

constexpr std::string_view kTexts[] = {"", "a red circle",
                                       "\xef\xbd\x81\xcc\x81 \xe2\x91\xa0\xd0\x9a</s> <x>", " \t\n"};
constexpr int64_t kLength = 8;

void encode(text::SentencePieceModel model) {
  std::unique_ptr<text::T5Tokenizer> tokenizer;
  const auto make = [&] {
    tokenizer = std::make_unique<text::T5Tokenizer>(
        text::T5TokenizerFiles{"file", std::move(model), {{"</s>", false}, {"<x>", true}}, "</s>"});
  };
  if (!accepts(make)) return;
  for (const std::string_view text : kTexts) {
    const std::vector<int64_t> ids = tokenizer->encode(text, kLength);
    require(!ids.empty() && ids.size() <= kLength, "a text has 1 to `max_length` ids");
    for (const int64_t id : ids)
      require(0 <= id && id < tokenizer->vocabulary_size(), "ids are of the vocabulary");
  }
}

void encode(const text::BpeTokenizer& tokenizer, std::string_view text) {
  std::vector<int64_t> ids;
  // Patterns may take too long, and the tokens around a text may exceed the limit.
  if (!accepts([&] { ids = tokenizer.encode(text, 1 << 20); }) || ids.size() > (1 << 10)) return;
  for (const int64_t id : ids)
    require(0 <= id && id < tokenizer.vocabulary_size(), "ids are of the vocabulary");
}

void encode(const text::BpeTokenizerFiles& files) {
  std::unique_ptr<text::BpeTokenizer> tokenizer;
  if (!accepts([&] { tokenizer = std::make_unique<text::BpeTokenizer>(files); })) return;
  for (const std::string_view text : kTexts) encode(*tokenizer, text);
}

// CLIP's tokenizer with few tokens.
text::BpeTokenizerFiles clip_files() {
  const JsonConfig description(parse_json(text::find_tokenizer_class("CLIPTokenizer")->description, "CLIP"),
                               "CLIP");
  text::BpeTokenizerFiles files;
  files.vocabulary = {{"r", 0}, {"e", 1}, {"d</w>", 2}, {"re", 3}, {"red</w>", 4}, {"<|endoftext|>", 5}};
  files.merges = {{"r", "e"}, {"re", "d</w>"}};
  files.options = {.unknown_token = "<|endoftext|>", .end_of_word_suffix = "</w>"};
  files.normalizer = description.values()["normalizer"];
  files.pre_tokenizer = description.values()["pre_tokenizer"];
  files.tokens = {{.text = "<|endoftext|>"},
                  {.text = "Tool", .normalized = true, .lstrip = true, .rstrip = true}};
  files.before = files.after = {"<|endoftext|>"};
  files.pad_token = "<|endoftext|>";
  return files;
}

void encode_as_clip(std::string_view text) {
  static const text::BpeTokenizer tokenizer(clip_files());
  const std::vector<int64_t> ids = tokenizer.encode_padded(text, kLength);
  require(ids.size() == kLength, "a padded text has the length that was asked for");
  encode(tokenizer, text);
}

void find_matches(std::string_view pattern, std::string_view text) {
  const auto find = [&] {
    size_t end = 0;
    for (const text::Regex::Match& match : text::Regex(pattern, "file").find_all(text)) {
      require(end <= match.begin && match.begin <= match.end && match.end <= text.size(),
              "matches are in order");
      require(!find_invalid_utf8(text.substr(match.begin, match.end - match.begin)),
              "matches are whole characters");
      end = match.end;
    }
  };
  accepts(find);
}

void run_bpe(char kind, std::string_view rest) {
  const size_t zero = std::min(rest.find('\0'), rest.size());
  const std::string_view first = rest.substr(0, zero);
  const std::string_view second = rest.substr(std::min(zero + 1, rest.size()));
  text::BpeTokenizerFiles files;
  if (kind == 'b') {
    if (accepts(
            [&] { files = text::parse_bpe_tokenizer_json(JsonConfig(parse_json(rest, "file"), "file")); }))
      encode(files);
  } else if (kind == 'v') {
    files = clip_files();
    const auto parse = [&] {
      files.vocabulary = text::parse_vocabulary(parse_json(first, "file"), "file");
      files.merges = text::parse_merge_lines(second, "file");
    };
    if (accepts(parse)) encode(files);
  } else if (kind == 'p') {
    if (!find_invalid_utf8(first) && !find_invalid_utf8(second)) find_matches(first, second);
  } else if (kind == 't') {
    if (!find_invalid_utf8(rest)) encode_as_clip(rest);
  }
}

void run(char kind, std::string_view rest) {
  text::SentencePieceModel model;
  if (kind == 's') {
    if (accepts([&] { model = text::parse_sentencepiece_model(rest, "file"); })) encode(std::move(model));
  } else if (kind == 'j') {
    const auto parse = [&] {
      model = text::parse_tokenizer_json(JsonConfig(parse_json(rest, "file"), "file"));
    };
    if (accepts(parse)) encode(std::move(model));
  } else if (kind == 'c') {
    text::Charsmap charsmap;
    if (!accepts([&] { charsmap = text::Charsmap(rest, "file"); })) return;
    for (const std::string_view text : kTexts) charsmap.normalize(text);
  } else {
    run_bpe(kind, rest);
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) tessera::run(static_cast<char>(data[0]), {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
