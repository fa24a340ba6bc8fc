#include "weights/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "weights/block_format.h"

namespace tessera::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie: little endian");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMostDims = 4, kMostNameBytes = 65535, kMostAlignment = 1 << 20;
constexpr int kMostNesting = 8;  // of arrays
constexpr const char* kReshaped = "comfy.gguf.orig_shape.";

// The types of values in the metadata, by number, and the bytes of those that have a size.
enum ValueType : uint32_t { kStringValue = 8, kArrayValue = 9 };
constexpr std::array<uint64_t, 13> kValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr bool is_unsigned(uint32_t type) {
  return type == 0 || type == 2 || type == 4 || type == 10;
}

// The types of tensors by number. Those without a dtype consist of blocks; those without a name are no longer
// part of the format.
struct TensorType {
  std::string_view name;
  std::optional<at::ScalarType> dtype = {};
};
constexpr std::array<TensorType, 40> kTensorTypes{{
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"Q4_0"},
    {"Q4_1"},
    {},
    {},
    {"Q5_0"},
    {"Q5_1"},
    {"Q8_0"},
    {"Q8_1"},
    {"Q2_K"},
    {"Q3_K"},
    {"Q4_K"},
    {"Q5_K"},
    {"Q6_K"},
    {"Q8_K"},
    {"IQ2_XXS"},
    {"IQ2_XS"},
    {"IQ3_XXS"},
    {"IQ1_S"},
    {"IQ4_NL"},
    {"IQ3_S"},
    {"IQ2_S"},
    {"IQ4_XS"},
    {"I8", at::kChar},
    {"I16", at::kShort},
    {"I32", at::kInt},
    {"I64", at::kLong},
    {"F64", at::kDouble},
    {"IQ1_M"},
    {"BF16", at::kBFloat16},
    {},
    {},
    {},
    {"TQ1_0"},
    {"TQ2_0"},
    {},
    {},
    {},
    {"MXFP4"},
}};

class GgufReader {
 public:
  GgufReader(std::span<const std::byte> file, const std::string& where) : file_(file), where_(where) {}

  uint64_t position() const { return at_; }

  template <typename Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }

  std::string name() {
    const auto length = number<uint64_t>();
    if (length > kMostNameBytes)
      input_error(where_, "a name of {} bytes is over the limit of {}: {}", length, kMostNameBytes,
                  kGetFileAgain);
    std::string name = text_of(length);
    if (std::any_of(name.begin(), name.end(), [](unsigned char each) { return each < ' '; }))
      input_error(where_, "a name has characters that cannot be shown: {}", kGetFileAgain);
    return name;
  }
  std::string text() { return text_of(number<uint64_t>()); }

  // A value of the metadata: a text or an unsigned number; values of other kinds are dropped.
  struct Value {
    std::optional<std::string> text;
    std::optional<uint64_t> number;
  };
  Value value(uint32_t type, int nesting = 0) {
    if (type == kStringValue) return {.text = text(), .number = {}};
    if (type == kArrayValue) {
      skip_array(nesting);
      return {};
    }
    if (type >= kValueBytes.size()) input_error(where_, "values of type {} cannot be read", type);
    uint64_t bits = 0;
    const std::span<const std::byte> bytes = take(kValueBytes[type]);
    std::memcpy(&bits, bytes.data(), bytes.size());
    return {.text = {}, .number = is_unsigned(type) ? std::optional(bits) : std::nullopt};
  }

 private:
  std::span<const std::byte> take(uint64_t bytes) {
    if (bytes > file_.size() - at_)
      input_error(where_, "the header ends at byte {}, before all of it was there: {}", file_.size(),
                  kGetFileAgain);
    const auto taken = file_.subspan(at_, bytes);
    at_ += bytes;
    return taken;
  }

  std::string text_of(uint64_t length) {
    const auto bytes = take(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void skip_array(int nesting) {
    if (nesting == kMostNesting)
      input_error(where_, "arrays in arrays, {} deep, cannot be read", kMostNesting + 1);
    const auto type = number<uint32_t>();
    const auto count = number<uint64_t>();
    if (type == kStringValue || type == kArrayValue) {
      for (uint64_t i = 0; i < count; ++i) value(type, nesting + 1);  // each takes bytes, which will run out
      return;
    }
    if (type >= kValueBytes.size()) input_error(where_, "arrays of type {} cannot be read", type);
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(count, kValueBytes[type], &bytes)) bytes = UINT64_MAX;
    take(bytes);
  }

  std::span<const std::byte> file_;
  const std::string& where_;
  uint64_t at_ = 0;
};

struct GgufMetadata {
  std::map<std::string, std::string> texts;
  uint64_t alignment = 32;
};

GgufMetadata read_metadata(GgufReader& reader, uint64_t count, const std::string& where) {
  GgufMetadata metadata;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = reader.name();
    const auto type = reader.number<uint32_t>();
    GgufReader::Value value = reader.value(type);
    if (value.text) metadata.texts[key] = std::move(*value.text);
    if (key.starts_with(kReshaped))
      input_error(where, "'{}' says that a tensor was given another shape, which cannot be read", key);
    if (key == "split.count" && value.number.value_or(0) > 1)
      input_error(where, "is one of {} parts of a file; join them first, with llama-gguf-split",
                  *value.number);
    if (key != "general.alignment") continue;
    metadata.alignment = value.number.value_or(0);
    if (!std::has_single_bit(metadata.alignment) || metadata.alignment > kMostAlignment)
      input_error(where, "'general.alignment' must be a power of two up to {}", kMostAlignment);
  }
  return metadata;
}

// Fills in how the numbers of a tensor are stored, and returns the bytes of `count` of them, in rows of
// `row`.
uint64_t read_type(uint32_t type, uint64_t count, uint64_t row, const std::string& key, TensorEntry& entry,
                   const std::string& where) {
  const TensorType known = type < kTensorTypes.size() ? kTensorTypes[type] : TensorType{};
  entry.dtype = known.dtype.value_or(at::kFloat);
  if (known.dtype) return count * c10::elementSize(entry.dtype);
  entry.blocks = find_block_format(known.name);
  if (!entry.blocks)
    input_error(where, "'{}': weights of type {} cannot be read; take a file of Q8_0, Q6_K, Q5_K or Q4_K",
                key, known.name.empty() ? std::to_string(type) : std::string(known.name));
  const auto numbers = static_cast<uint64_t>(entry.blocks->numbers);
  if (row % numbers != 0)
    input_error(where, "'{}': rows of {} numbers are no whole blocks of {}", key, row, known.name);
  return count / numbers * static_cast<uint64_t>(entry.blocks->bytes);
}

// Its end may still be beyond the end of the file.
TensorEntry read_tensor(GgufReader& reader, const std::string& key, uint64_t alignment,
                        const std::string& where) {
  TensorEntry entry{};
  const auto dims = reader.number<uint32_t>();
  if (dims > kMostDims) input_error(where, "'{}': {} dimensions are more than {}", key, dims, kMostDims);
  uint64_t strides = 8;  // must fit in the largest dtype, even if another size is 0
  uint64_t count = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const auto size = reader.number<uint64_t>();
    if (__builtin_mul_overflow(strides, std::max<uint64_t>(size, 1), &strides) || strides > INT64_MAX)
      input_error(where, "'{}': shape is too large to address", key);
    entry.shape.insert(entry.shape.begin(), static_cast<int64_t>(size));  // the last dimension comes first
    count *= size;
  }
  const auto type = reader.number<uint32_t>();
  const uint64_t row = entry.shape.empty() ? 1 : static_cast<uint64_t>(entry.shape.back());
  const uint64_t bytes = read_type(type, count, row, key, entry, where);
  entry.begin = reader.number<uint64_t>();
  if (entry.begin % alignment != 0)
    input_error(where, "'{}': begins at byte {} of the data, no multiple of {}", key, entry.begin, alignment);
  if (__builtin_add_overflow(entry.begin, bytes, &entry.end)) entry.end = UINT64_MAX;
  return entry;
}

}  // namespace

bool is_gguf(std::string_view beginning) {
  return beginning.starts_with(kMagic);
}

TensorFileHeader parse_gguf(std::span<const std::byte> file, uint64_t file_bytes, const std::string& where) {
  if (file_bytes < kMagic.size())
    input_error(where, "a file of {} is too short for GGUF: {}",
                counted(static_cast<int64_t>(file_bytes), "byte"), kGetFileAgain);
  if (!is_gguf({reinterpret_cast<const char*>(file.data()), file.size()}))
    input_error(where, "is no GGUF file: it does not begin with {}", kMagic);
  GgufReader reader(file, where);
  reader.number<uint32_t>();
  const auto version = reader.number<uint32_t>();
  // Version 3 is version 2, but may also be big-endian; its number then has other bytes.
  if (version != 2 && version != 3)
    input_error(where, "{} of GGUF cannot be read; convert the model again",
                version % 65536 == 0 ? "big-endian files" : fmt::format("version {}", version));
  const auto tensors = reader.number<uint64_t>();
  const auto values = reader.number<uint64_t>();
  TensorFileHeader header;
  GgufMetadata metadata = read_metadata(reader, values, where);
  header.metadata = std::move(metadata.texts);
  for (uint64_t i = 0; i < tensors; ++i) {
    std::string key = reader.name();
    TensorEntry entry = read_tensor(reader, key, metadata.alignment, where);
    const auto [place, is_new] = header.tensors.emplace(std::move(key), std::move(entry));
    if (!is_new) input_error(where, "'{}' is there twice", place->first);
  }
  const uint64_t aligned =
      (reader.position() + metadata.alignment - 1) / metadata.alignment * metadata.alignment;
  header.data_offset = std::min(aligned, file_bytes);
  // Each tensor begins at a multiple of the alignment.
  check_places(header, file_bytes - header.data_offset, Gaps::kAllowed, where);
  return header;
}

}  // namespace tessera::weights
