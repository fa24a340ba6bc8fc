// What the fuzzers of files of tensors have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "fuzz/check.h"
#include "weights/single_file.h"
#include "weights/tensor_file.h"

namespace tessera::fuzz {

inline bool has_bytes_of_shape(const weights::TensorEntry& entry) {
  int64_t count = 1;
  for (const int64_t size : entry.shape) {
    require(size >= 0, "sizes are not negative");
    count *= size;
  }
  return entry.begin <= entry.end &&
         static_cast<uint64_t>(weights::bytes_in_file(entry, count)) == entry.end - entry.begin;
}

// What is renamed, cut or turned lies in the file too.
inline void check_parts(const weights::TensorFileHeader& header) {
  uint64_t end = 0;
  weights::NamedTensors tensors;
  for (const auto& [key, entry] : header.tensors) {
    end = std::max(end, entry.end);
    tensors.emplace(key, weights::NamedTensor{entry});
  }
  for (const char* part : {"unet", "vae", "text_encoder", "text_encoder_2", "transformer"}) {
    weights::NamedTensors named;
    accepts([&] { named = weights::single_file_part(tensors, part); });
    for (const auto& [name, tensor] : named) {
      require(tensor.entry.end <= end && has_bytes_of_shape(tensor.entry), "a part of a file lies in it");
      require(!tensor.is_transposed || tensor.entry.shape.size() == 2, "what is turned has two dimensions");
    }
  }
}

// Any bytes must be accepted, or refused with an input error, and accepted tensors must lie in the file.
// `check(header, data)` requires what the format promises besides.
template <typename Check>
void run_parser(weights::TensorFile::Parser& parse, std::span<const std::byte> file, Check&& check) {
  weights::TensorFileHeader header;
  if (!accepts([&] { header = parse(file, file.size(), "file"); })) return;
  require(header.data_offset <= file.size(), "the data begin in the file");
  const std::span<const std::byte> data = file.subspan(header.data_offset);
  for (const auto& [key, entry] : header.tensors) {
    require(has_bytes_of_shape(entry), "a tensor's bytes match its shape");
    require(entry.end <= data.size(), "a tensor lies in the file");
  }
  check(header, data);
  check_parts(header);
  // The header alone must give the same result.
  weights::TensorFileHeader prefix;
  const bool accepted = accepts([&] { prefix = parse(file.first(header.data_offset), file.size(), "file"); });
  require(accepted && prefix.tensors.size() == header.tensors.size() && prefix.metadata == header.metadata,
          "the header is enough");
}

}  // namespace tessera::fuzz
