// Weights that are stored in blocks of numbers, each with its own factors, as in GGUF files.
// Formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera::weights {

// Q8_0, Q5_0, ...: how consecutive numbers of a row are coded. The formats are entries of a table: two
// pointers are equal if their formats are.
struct BlockFormat {
  std::string_view name;
  int64_t numbers, bytes;  // of a block
  // Decodes a block to its numbers, by products and sums in fp32.
  void (*decode)(const std::byte* block, float* numbers);
};

// nullptr if there is no decodable format of this name.
const BlockFormat* find_block_format(std::string_view name);

}  // namespace tessera::weights
