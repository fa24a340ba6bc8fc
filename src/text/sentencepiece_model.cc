#include "text/sentencepiece_model.h"

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/text.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

// Field numbers of sentencepiece_model.proto.
constexpr uint64_t kModelPieces = 1, kModelTrainerSpec = 2, kModelNormalizerSpec = 3;
constexpr uint64_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint64_t kTrainerModelType = 3;
constexpr uint64_t kNormalizerCharsmap = 2;
// Values of these fields.
constexpr uint64_t kUnigram = 1;
constexpr uint64_t kControl = 3, kUserDefined = 4;

// Holds one field of a message. `varint` or `bytes` holds its payload, depending on the wire type.
struct Field {
  uint64_t number = 0;
  uint64_t varint = 0;
  std::string_view bytes;  // of length-delimited and fixed-size fields
};

// Reads a message field by field. https://protobuf.dev/programming-guides/encoding
class Message {
 public:
  Message(std::string_view bytes, const std::string& where) : rest_(bytes), where_(where) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    field = {.number = tag >> 3, .varint = 0, .bytes = {}};
    switch (tag & 7) {
      case 0:
        field.varint = varint();
        break;
      case 1:
        field.bytes = take(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        fail();
    }
    return true;
  }

  [[noreturn]] void fail() const { input_error(where_, "not a SentencePiece model, or a damaged one"); }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail();
  }

  std::string_view take(uint64_t count) {
    if (count > rest_.size()) fail();
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }

  std::string_view rest_;
  const std::string& where_;
};

// The rules are in the normaliser itself or in a member of its sequence. They may be absent.
std::string find_charsmap(const Json& normalizer, const std::string& where) {
  if (!normalizer.is_object()) return {};
  const Json single = Json::array({normalizer});
  const Json& parts = normalizer.contains("normalizers") ? normalizer["normalizers"] : single;
  for (const Json& part : parts) {
    if (!part.is_object() || !part.contains("precompiled_charsmap")) continue;
    const Json& charsmap = part["precompiled_charsmap"];
    if (!charsmap.is_string()) continue;
    auto bytes = decode_base64(charsmap.get_ref<const std::string&>());
    if (!bytes) input_error(where, "'precompiled_charsmap' is not base64");
    return *std::move(bytes);
  }
  return {};
}

// Longer graphemes are never looked up as a whole.
constexpr size_t kMaxGraphemeBytes = 5;

// Reads the fields of one unit of the double array.
bool has_leaf(uint32_t unit) {
  return ((unit >> 8) & 1U) != 0;
}
uint32_t value(uint32_t unit) {
  return unit & 0x7fffffffU;
}
uint32_t label(uint32_t unit) {
  return unit & 0x800000ffU;
}
uint32_t offset(uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200U) >> 6);
}

// Returns whether a byte of UTF-8 continues a character.
bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U;
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where) {
  SentencePieceModel model;
  uint64_t model_type = kUnigram;
  bool has_normalizer = false;
  Message message(bytes, where);
  Field field;
  Field inner;
  while (message.next(field)) {
    Message part(field.bytes, where);
    if (field.number == kModelPieces) {
      Piece piece{.text = {}, .score = 0};
      uint64_t type = 0;
      while (part.next(inner)) {
        if (inner.number == kPieceText) piece.text = inner.bytes;
        if (inner.number == kPieceType) type = inner.varint;
        if (inner.number == kPieceScore) {
          float score = NAN;
          if (inner.bytes.size() == sizeof(score)) std::memcpy(&score, inner.bytes.data(), sizeof(score));
          if (!std::isfinite(score)) part.fail();
          piece.score = score;
        }
      }
      if (type == kControl || type == kUserDefined) model.symbols.push_back(piece.text);
      model.pieces.push_back(std::move(piece));
    } else if (field.number == kModelTrainerSpec) {
      while (part.next(inner)) {
        if (inner.number == kTrainerModelType) model_type = inner.varint;
      }
    } else if (field.number == kModelNormalizerSpec) {
      has_normalizer = true;
      while (part.next(inner)) {
        if (inner.number == kNormalizerCharsmap) model.charsmap = inner.bytes;
      }
    }
  }
  // A file that is truncated between two fields is still a valid message, but lacks the field of the
  // normaliser, which follows the pieces and the trainer's.
  if (!has_normalizer) message.fail();
  if (model_type != kUnigram)
    input_error(where, "a SentencePiece model of another type than Unigram, which T5 needs");
  return model;
}

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

Charsmap::Charsmap(std::string_view blob, const std::string& where) {
  uint32_t trie_bytes = 0;
  if (blob.size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes > blob.size() - sizeof(trie_bytes)) {
    input_error(where, "the normaliser's character map is damaged: {} with a trie of {}",
                counted(static_cast<int64_t>(blob.size()), "byte"), counted(trie_bytes, "byte"));
  }
  units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), blob.data() + sizeof(trie_bytes), trie_bytes);
  replacements_ = blob.substr(sizeof(trie_bytes) + trie_bytes);
  if (find_invalid_utf8(replacements_))
    input_error(where, "the normaliser's character map is damaged: not UTF-8");
}

std::string Charsmap::normalize(std::string_view text) const {
  if (units_.empty()) return std::string(text);
  std::string result;
  result.reserve(text.size());
  for_each_grapheme(text, [&](std::string_view grapheme) {
    if (grapheme.size() <= kMaxGraphemeBytes) {
      if (const auto whole = replacement(grapheme)) {
        result += *whole;
        return;
      }
    }
    for_each_character(
        grapheme, [&](char32_t, std::string_view bytes) { result += replacement(bytes).value_or(bytes); });
  });
  return result;
}

std::optional<std::string_view> Charsmap::replacement(std::string_view text) const {
  uint32_t node = offset(units_[0]);
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte == 0) break;
    node ^= byte;
    // A damaged trie may point anywhere.
    if (node >= units_.size() || label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size() || value(units_[node]) > replacements_.size()) break;
    const std::string_view rest = std::string_view(replacements_).substr(value(units_[node]));
    if (!rest.empty() && is_continuation(rest[0])) break;  // the middle of a character
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

}  // namespace tessera::text
