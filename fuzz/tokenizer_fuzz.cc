// Fuzzes what a checkpoint's tokenizer is made of. The first byte says what the rest is: 's' a SentencePiece
// model, 'j' a tokenizer.json, 'c' a precompiled character map. What is accepted has to encode text.
#include <cstdint>
#include <string_view>

#include "core/utf8.h"
#include "fuzz/check.h"
#include "text/t5_tokenizer.h"
#include "text/tokenizer_json.h"

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
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) tessera::run(static_cast<char>(data[0]), {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
