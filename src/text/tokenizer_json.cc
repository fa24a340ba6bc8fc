#include "text/tokenizer_json.h"

#include <cmath>

#include "core/error.h"

namespace tessera::text {
namespace {

std::string decode_base64(std::string_view text, const std::string& where) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  for (const char character : text) {
    const size_t digit = kDigits.find(character);
    if (digit == std::string_view::npos) input_error(where, "'precompiled_charsmap' is not base64");
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count));
  }
  return bytes;
}

// The rules are in the normaliser itself or in one of its sequence. They may be absent.
std::string find_charsmap(const Json& normalizer, const std::string& where) {
  if (!normalizer.is_object()) return {};
  const Json single = Json::array({normalizer});
  const Json& parts = normalizer.contains("normalizers") ? normalizer["normalizers"] : single;
  for (const Json& part : parts) {
    if (!part.is_object() || !part.contains("precompiled_charsmap")) continue;
    const Json& charsmap = part["precompiled_charsmap"];
    if (charsmap.is_string()) return decode_base64(charsmap.get_ref<const std::string&>(), where);
  }
  return {};
}

}  // namespace

SentencePieceModel parse_tokenizer_json(const JsonConfig& document) {
  const Json& values = document.values();
  if (!document.has("model") || !values["model"].is_object()) document.fail("model", "an object");
  const JsonConfig unigram(values["model"], document.where());
  const std::string type = unigram.string("type", "Unigram", Null::kDefault);
  if (type != "Unigram") {
    input_error(document.where(), "a tokenizer of type {}; a T5 tokenizer has the type Unigram", type);
  }
  if (!unigram.has("vocab") || !unigram.values()["vocab"].is_array()) unigram.fail("vocab", "an array");
  SentencePieceModel model;
  for (const Json& row : unigram.values()["vocab"]) {
    if (!row.is_array() || row.size() != 2 || !row[0].is_string() || !row[1].is_number() ||
        !std::isfinite(row[1].get<double>())) {
      input_error(document.where(), "'vocab' row {} must be [piece, score]", model.pieces.size());
    }
    model.pieces.push_back({row[0].get<std::string>(), row[1].get<double>()});
  }
  if (document.has("normalizer")) model.charsmap = find_charsmap(values["normalizer"], document.where());
  return model;
}

}  // namespace tessera::text
