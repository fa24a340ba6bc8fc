// Fuzzes parse_gguf. Blocks of any bytes are decoded.
#include <cstdint>
#include <vector>

#include "fuzz/tensor_file.h"
#include "weights/block_format.h"
#include "weights/gguf.h"

namespace tessera::weights {
namespace {

void decode(const TensorFileHeader& header, std::span<const std::byte> data) {
  for (const auto& [key, entry] : header.tensors) {
    if (!entry.blocks || entry.begin == entry.end) continue;
    fuzz::require(entry.shape.back() % entry.blocks->numbers == 0, "rows are whole blocks");
    std::vector<float> numbers(static_cast<size_t>(entry.blocks->numbers));
    for (uint64_t at = entry.begin; at < entry.end; at += static_cast<uint64_t>(entry.blocks->bytes))
      entry.blocks->decode(data.data() + at, numbers.data());
  }
}

}  // namespace
}  // namespace tessera::weights

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  fuzz::run_parser(weights::parse_gguf, {reinterpret_cast<const std::byte*>(data), size}, weights::decode);
  return 0;
}
