// Bytes of GGUF files, piece by piece.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// So many bytes of a number, little-endian.
inline std::string gguf_number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 255));
  return text;
}

inline std::string gguf_text(const std::string& text) {
  return gguf_number(text.size(), 8) + text;
}

// A pair of the metadata, with a value of type `type`.
inline std::string gguf_value(const std::string& key, uint32_t type, const std::string& value) {
  return gguf_text(key) + gguf_number(type, 4) + value;
}

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> shape;
  uint32_t type = 0;  // F32
  std::string data;
};

// What stands in a file of tensors one behind the other, each at a multiple of `alignment`.
inline std::string gguf_file(const std::vector<GgufTensor>& tensors,
                             const std::vector<std::string>& metadata = {}, uint64_t alignment = 32) {
  std::string header =
      "GGUF" + gguf_number(3, 4) + gguf_number(tensors.size(), 8) + gguf_number(metadata.size(), 8);
  for (const std::string& each : metadata) header += each;
  std::string data;
  const auto align = [&](std::string& text) {
    text.resize((text.size() + alignment - 1) / alignment * alignment);
  };
  for (const GgufTensor& each : tensors) {
    align(data);
    header += gguf_text(each.name) + gguf_number(each.shape.size(), 4);
    for (auto size = each.shape.rbegin(); size != each.shape.rend(); ++size) header += gguf_number(*size, 8);
    header += gguf_number(each.type, 4) + gguf_number(data.size(), 8);
    data += each.data;
  }
  align(header);
  return header + data;
}

}  // namespace tessera
