// Fuzzes parse_safetensors: any bytes must be accepted, or refused with an input error, and accepted tensors
// must lie in the file. The parts of Stable Diffusion's single files are separated too.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "fuzz/check.h"
#include "weights/safetensors.h"
#include "weights/single_file.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tessera::weights {
namespace {

using fuzz::require;

constexpr size_t kLengthBytes = sizeof(uint64_t);

void check_header(const TensorFileHeader& header, uint64_t file_bytes) {
  require(header.data_offset >= kLengthBytes && header.data_offset <= file_bytes,
          "the data begin in the file");
  const uint64_t data_bytes = file_bytes - header.data_offset;
  uint64_t covered = 0;
  for (const auto& [key, entry] : header.tensors) {
    require(entry.begin <= entry.end && entry.end <= data_bytes, "a tensor lies in the file");
    uint64_t bytes = c10::elementSize(entry.dtype);
    for (const int64_t size : entry.shape) {
      require(size >= 0, "sizes are not negative");
      bytes *= static_cast<uint64_t>(size);
    }
    require(bytes == entry.end - entry.begin, "a tensor's bytes match its shape");
    covered += bytes;
  }
  require(covered == data_bytes, "tensors cover the data");
}

// The parts of a single file must lie in it too.
void check_single_file(const TensorFileHeader& header) {
  uint64_t end = 0;
  NamedTensors tensors;
  for (const auto& [key, entry] : header.tensors) {
    end = std::max(end, entry.end);
    tensors.emplace(key, NamedTensor{entry});
  }
  for (const char* part : {"unet", "vae", "text_encoder", "text_encoder_2", "transformer"}) {
    NamedTensors named;
    fuzz::accepts([&] { named = single_file_part(tensors, part); });
    for (const auto& [name, tensor] : named) {
      const TensorEntry& entry = tensor.entry;
      uint64_t bytes = c10::elementSize(entry.dtype);
      for (const int64_t size : entry.shape) bytes *= static_cast<uint64_t>(size);
      require(entry.begin <= entry.end && entry.end <= end && bytes == entry.end - entry.begin,
              "a part of a single file lies in it");
      require(!tensor.is_transposed || entry.shape.size() == 2, "what is turned has two dimensions");
    }
  }
}

void run(std::span<const std::byte> file) {
  TensorFileHeader header;
  if (!fuzz::accepts([&] { header = parse_safetensors(file, file.size(), "file"); })) return;
  check_header(header, file.size());
  check_single_file(header);
  // The header alone must give the same result.
  TensorFileHeader prefix;
  const bool accepted =
      fuzz::accepts([&] { prefix = parse_safetensors(file.first(header.data_offset), file.size(), "file"); });
  require(accepted && prefix.tensors.size() == header.tensors.size() && prefix.metadata == header.metadata,
          "the header is enough");
}

}  // namespace
}  // namespace tessera::weights

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::weights::run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}

// Most mutations break the header's length and never reach the JSON behind it. Seven times out of eight the
// length is therefore set to the new end of the header.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 == 0 || size <= tessera::weights::kLengthBytes) return size;
  const std::string_view rest(reinterpret_cast<const char*>(data) + tessera::weights::kLengthBytes,
                              size - tessera::weights::kLengthBytes);
  const size_t brace = rest.rfind('}');
  const uint64_t length = brace == std::string_view::npos ? rest.size() : brace + 1;
  std::memcpy(data, &length, sizeof(length));
  return size;
}
