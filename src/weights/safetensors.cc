#include "weights/safetensors.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"
#include "weights/gguf.h"

namespace tessera::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read as they lie: little endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

std::string counted_bytes(uint64_t count) {
  return counted(static_cast<int64_t>(count), "byte");
}

struct DtypeName {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array<DtypeName, 15> kDtypes{{{"BOOL", at::kBool},
                                             {"U8", at::kByte},
                                             {"I8", at::kChar},
                                             {"I16", at::kShort},
                                             {"U16", at::kUInt16},
                                             {"F8_E4M3", at::kFloat8_e4m3fn},
                                             {"F8_E5M2", at::kFloat8_e5m2},
                                             {"F16", at::kHalf},
                                             {"BF16", at::kBFloat16},
                                             {"I32", at::kInt},
                                             {"U32", at::kUInt32},
                                             {"F32", at::kFloat},
                                             {"F64", at::kDouble},
                                             {"I64", at::kLong},
                                             {"U64", at::kUInt64}}};

at::ScalarType parse_dtype(const Json& value, const std::string& key, const std::string& where) {
  if (value.is_string()) {
    const std::string& name = value.get_ref<const std::string&>();
    for (const DtypeName& known : kDtypes) {
      if (known.name == name) return known.dtype;
    }
  }
  input_error(
      where,
      "'{}': dtype {} cannot be read; expected BOOL, U8-U64, I8-I64, F8_E4M3, F8_E5M2, F16, BF16, F32 or "
      "F64",
      key, value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40));
}

std::string_view dtype_name(at::ScalarType dtype) {
  for (const DtypeName& known : kDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  TESSERA_CHECK(false, "dtype {} has no name in safetensors", at::toString(dtype));
}

// Reads a JSON number that is an unsigned integer and fits int64.
bool read_count(const Json& value, uint64_t& count) {
  if (!value.is_number_unsigned()) return false;
  count = value.get<uint64_t>();
  return count <= static_cast<uint64_t>(INT64_MAX);
}

// Its end may still be beyond the end of the file.
TensorEntry parse_entry(const Json& value, const std::string& key, const std::string& where) {
  const auto refuse = [&](const char* what) { input_error(where, "'{}': {}", key, what); };
  if (!value.is_object()) refuse("expected an object with dtype, shape and data_offsets");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(field)) input_error(where, "'{}': '{}' is missing", key, field);
  }
  TensorEntry entry{};
  entry.dtype = parse_dtype(value["dtype"], key, where);

  const Json& shape = value["shape"];
  if (!shape.is_array() || shape.size() > 16) refuse("shape must be a list of at most 16 sizes");
  uint64_t bytes = c10::elementSize(entry.dtype);
  uint64_t strides = bytes;  // strides must fit even if another size is 0
  for (const Json& item : shape) {
    uint64_t size = 0;
    if (!read_count(item, size)) refuse("shape must hold non-negative integers");
    entry.shape.push_back(static_cast<int64_t>(size));
    if (__builtin_mul_overflow(strides, std::max<uint64_t>(size, 1), &strides) || strides > INT64_MAX) {
      refuse("shape is too large to address");
    }
    bytes *= size;
  }

  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !read_count(offsets[0], entry.begin) ||
      !read_count(offsets[1], entry.end)) {
    refuse("data_offsets must be two non-negative integers");
  }
  if (entry.begin > entry.end) refuse("data_offsets run backwards");
  if (entry.end - entry.begin != bytes) {
    input_error(where, "'{}': expected {}, got {}", key, counted_bytes(bytes), entry.end - entry.begin);
  }
  return entry;
}

}  // namespace

TensorFileHeader parse_safetensors(std::span<const std::byte> file, uint64_t file_bytes,
                                   const std::string& where) {
  uint64_t header_bytes = 0;
  if (file_bytes < sizeof(header_bytes) || file.size() < sizeof(header_bytes)) {
    input_error(where, "a file of {} is too short for safetensors: {}", counted_bytes(file_bytes),
                kGetFileAgain);
  }
  const std::string_view beginning(reinterpret_cast<const char*>(file.data()), file.size());
  refuse_git_lfs_pointer(beginning, where);
  if (is_gguf(beginning))
    input_error(where,
                "is a GGUF file, which holds a transformer alone; name it as {}, and this folder as {}",
                field("model"), field("config"));
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (beginning.starts_with('<'))
    input_error(
        where,
        "is a web page in the place of the file; get the file again, logged in where the site wants that");
  if (header_bytes > kMaxHeaderBytes) {
    input_error(where, "a header of {} bytes is over the limit of {}: not a safetensors file", header_bytes,
                kMaxHeaderBytes);
  }
  if (header_bytes > file_bytes - sizeof(header_bytes) || header_bytes > file.size() - sizeof(header_bytes)) {
    input_error(where, "the header should have {}, but the file ends after {}: {}",
                counted_bytes(header_bytes), file_bytes - sizeof(header_bytes), kGetFileAgain);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(header_bytes),
                              header_bytes);
  const Json json = parse_json(text, where);
  if (!json.is_object()) input_error(where, "the header must be a JSON object");

  TensorFileHeader header;
  header.data_offset = sizeof(header_bytes) + header_bytes;
  const uint64_t data_bytes = file_bytes - header.data_offset;
  for (const auto& [key, value] : json.items()) {
    if (key != "__metadata__") {
      header.tensors.emplace(key, parse_entry(value, key, where));
      continue;
    }
    if (!value.is_object()) input_error(where, "'__metadata__' must be an object of strings");
    for (const auto& [name, text_value] : value.items()) {
      if (!text_value.is_string()) input_error(where, "'__metadata__' must be an object of strings");
      header.metadata.emplace(name, text_value.get<std::string>());
    }
  }
  check_places(header, data_bytes, Gaps::kRefused, where);
  return header;
}

namespace {

// Returns everything before the data of tensors, which follow in the order of their names.
std::string write_header(const std::map<std::string, at::Tensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t end = 0;
  for (const auto& [key, tensor] : tensors) {
    const uint64_t begin = std::exchange(end, end + tensor.nbytes());
    header[key] = {{"dtype", dtype_name(tensor.scalar_type())},
                   {"shape", tensor.sizes().vec()},
                   {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump(-1, ' ', true, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // keeps the data aligned
  const uint64_t header_bytes = text.size();
  return std::string(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)) + text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  AtomicFile file(path);
  file.write(write_header(tensors, metadata));
  for (const auto& [key, tensor] : tensors) {
    const at::Tensor plain = tensor.to(at::kCPU).contiguous();
    file.write({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
  }
  file.commit();
}

std::string write_safetensors(const FileContents& contents) {
  std::string bytes = write_header(contents.tensors, contents.metadata);
  for (const auto& [key, tensor] : contents.tensors) {
    const at::Tensor plain = tensor.to(at::kCPU).contiguous();
    bytes.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  }
  return bytes;
}

FileContents read_safetensors(std::string_view bytes, const std::string& where) {
  const TensorFileHeader header = parse_safetensors(std::as_bytes(std::span(bytes)), bytes.size(), where);
  FileContents contents{.tensors = {}, .metadata = header.metadata};
  for (const auto& [key, entry] : header.tensors) {
    const at::Tensor tensor = at::empty(entry.shape, at::dtype(entry.dtype));
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + header.data_offset + entry.begin,
                entry.end - entry.begin);
    contents.tensors.emplace(key, tensor);
  }
  return contents;
}

}  // namespace tessera::weights
