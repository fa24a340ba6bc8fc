// Fuzzes parse_safetensors.
#include <cstdint>
#include <cstring>
#include <string_view>

#include "fuzz/tensor_file.h"
#include "weights/safetensors.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tessera::weights {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);

void check_cover(const TensorFileHeader& header, std::span<const std::byte> data) {
  fuzz::require(header.data_offset >= kLengthBytes, "the data begin behind the header's length");
  uint64_t covered = 0;
  for (const auto& [key, entry] : header.tensors) covered += entry.end - entry.begin;
  fuzz::require(covered == data.size(), "tensors cover the data");
}

}  // namespace
}  // namespace tessera::weights

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  fuzz::run_parser(weights::parse_safetensors, {reinterpret_cast<const std::byte*>(data), size},
                   weights::check_cover);
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
