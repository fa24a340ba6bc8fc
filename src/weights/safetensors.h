// The safetensors format: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes.
// Format: https://github.com/huggingface/safetensors#format
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "weights/tensor_file.h"

namespace tessera::weights {

// Parses a header and checks all that can be checked without the data: the header's length against the
// file's, JSON, dtypes, shapes (no overflow), that each tensor's bytes match its shape and are within the
// file, and that tensors cover the data section without overlaps and gaps. `file` is the whole file or any
// prefix that contains the header; `file_bytes` is the size of the whole. Throws Error(kInput), with `where`
// in the message.
TensorFileHeader parse_safetensors(std::span<const std::byte> file, uint64_t file_bytes,
                                   const std::string& where);

class SafetensorsFile : public TensorFile {
 public:
  // Throws Error(kInput) for anything that parse_safetensors refuses.
  explicit SafetensorsFile(const std::filesystem::path& path) : TensorFile(path, parse_safetensors) {}
};

// The contents of such a file.
struct FileContents {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Returns the bytes of a file with these tensors, which may be on any device and are made contiguous.
std::string write_safetensors(const FileContents& contents);
// Reads such bytes; the tensors are copies on the CPU. Throws Error(kInput) for anything that
// parse_safetensors() refuses.
FileContents read_safetensors(std::string_view bytes, const std::string& where);

// Writes tensors, which may be on any device and are made contiguous, with AtomicFile. Throws Error(kUsage)
// if the path cannot be written.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tessera::weights
