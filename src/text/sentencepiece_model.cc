#include "text/sentencepiece_model.h"

#include <cmath>
#include <cstring>

#include "core/error.h"

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

// One field of a message. `varint` or `bytes` holds its payload, depending on the wire type.
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
  // A file that is truncated between two fields is still a valid message, but lacks the normalizer's, which
  // follows the pieces and the trainer's.
  if (!has_normalizer) message.fail();
  if (model_type != kUnigram)
    input_error(where, "a SentencePiece model of another type than Unigram, which T5 needs");
  return model;
}

}  // namespace tessera::text
