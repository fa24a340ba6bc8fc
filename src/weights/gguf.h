// The GGUF format: a header of counts, pairs of metadata, names, shapes and types of tensors, then their
// bytes. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "weights/tensor_file.h"

namespace tessera::weights {

// Whether a file with this beginning has this format.
bool is_gguf(std::string_view beginning);

// Parses the beginning of a file and checks all that can be checked without the data: lengths against the
// file's, types, shapes (no overflow), and that tensors begin where the format requires, are within the file
// and do not overlap. It keeps the texts of the metadata. `file` is the whole file or any prefix that
// includes the beginning of the data section; `file_bytes` is the size of the whole. Throws Error(kInput),
// with `where` in the message.
TensorFileHeader parse_gguf(std::span<const std::byte> file, uint64_t file_bytes, const std::string& where);

}  // namespace tessera::weights
