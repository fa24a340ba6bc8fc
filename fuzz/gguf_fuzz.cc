// Fuzzes parse_gguf: any bytes must be accepted, or refused with an input error, and accepted tensors must
// lie in the file. Blocks of any bytes are decoded.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fuzz/check.h"
#include "weights/block_format.h"
#include "weights/denoiser_file.h"
#include "weights/gguf.h"

namespace tessera::weights {
namespace {

using fuzz::require;

void check_tensor(const TensorEntry& entry, std::span<const std::byte> data) {
  require(entry.begin <= entry.end && entry.end <= data.size(), "a tensor lies in the file");
  int64_t count = 1;
  for (const int64_t size : entry.shape) {
    require(size >= 0, "sizes are not negative");
    count *= size;
  }
  require(static_cast<uint64_t>(bytes_in_file(entry, count)) == entry.end - entry.begin,
          "a tensor's bytes match its shape");
  if (!entry.blocks || count == 0) return;
  require(entry.shape.back() % entry.blocks->numbers == 0, "rows are whole blocks");
  std::vector<float> numbers(static_cast<size_t>(entry.blocks->numbers));
  for (int64_t i = 0; i < count / entry.blocks->numbers; ++i)
    entry.blocks->decode(data.data() + entry.begin + i * entry.blocks->bytes, numbers.data());
}

// What is renamed, cut or turned lies there too.
void check_names(const TensorFileHeader& header) {
  NamedTensors tensors;
  for (const auto& [key, entry] : header.tensors) tensors.emplace(key, NamedTensor{entry});
  NamedTensors named;
  if (!fuzz::accepts([&] { named = denoiser_tensors(tensors); })) return;
  uint64_t end = 0;
  for (const auto& [key, entry] : header.tensors) end = std::max(end, entry.end);
  for (const auto& [name, tensor] : named) {
    int64_t count = 1;
    for (const int64_t size : tensor.entry.shape) count *= size;
    require(tensor.entry.end <= end && static_cast<uint64_t>(bytes_in_file(tensor.entry, count)) ==
                                           tensor.entry.end - tensor.entry.begin,
            "a part of a file lies in it");
  }
}

void run(std::span<const std::byte> file) {
  TensorFileHeader header;
  if (!fuzz::accepts([&] { header = parse_gguf(file, file.size(), "file"); })) return;
  require(header.data_offset <= file.size(), "the data begin in the file");
  const std::span<const std::byte> data = file.subspan(header.data_offset);
  for (const auto& [key, entry] : header.tensors) check_tensor(entry, data);
  check_names(header);
  // The header alone must give the same result.
  TensorFileHeader prefix;
  const bool accepted =
      fuzz::accepts([&] { prefix = parse_gguf(file.first(header.data_offset), file.size(), "file"); });
  require(accepted && prefix.tensors.size() == header.tensors.size() && prefix.metadata == header.metadata,
          "the header is enough");
}

}  // namespace
}  // namespace tessera::weights

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::weights::run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
