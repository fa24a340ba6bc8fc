// The safetensors format: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes.
// Format: https://github.com/huggingface/safetensors#format
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weights/mapped_file.h"

namespace tessera::weights {

// The position of one tensor. `begin` and `end` count bytes from the start of the data section.
struct TensorEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin;
  uint64_t end;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t data_offset;  // of the data section in the file
};

// Parses a header and checks all that can be checked without the data: the header's length against the
// file's, JSON, dtypes, shapes (no overflow), that each tensor's bytes match its shape and lie in the file,
// and that tensors cover the data section without overlaps and gaps. `file` is the whole file or any prefix
// that contains the header; `file_bytes` is the size of the whole. Throws Error(kInput), with `where` in the
// message.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, uint64_t file_bytes,
                                    const std::string& where);

// A mapped file. Its tensors are read where they are, without a copy.
class SafetensorsFile {
 public:
  // Throws Error(kInput) for anything that parse_safetensors refuses.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }

  // The bytes of `entry` in the mapping, valid as long as this object lives. Throws Error(kInput) if the file
  // was written to since it was opened.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;

  // Returns the memory of the pages that lie entirely in `entry` to the system; they are read again when
  // touched.
  void release(const TensorEntry& entry) const noexcept;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
};

// Writes tensors of any device, made contiguous, by AtomicFile. Throws Error(kUsage) if the path cannot be
// written.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tessera::weights
