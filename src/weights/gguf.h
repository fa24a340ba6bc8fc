// The GGUF format: a header of counts, pairs of metadata, names, shapes and types of tensors, then their
// bytes. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "weights/tensor_file.h"

namespace tessera::weights {

// Whether a file with this beginning is of the format.
bool is_gguf(std::string_view beginning);

// Parses the beginning of a file and checks all that can be checked without the data: lengths against the
// file's, types, shapes (no overflow), and that tensors begin where the format has them begin, lie in the
// file and do not overlap. Of the metadata it keeps the texts. `file` is the whole file or any prefix that
// ends with the data section's beginning or behind it; `file_bytes` is the size of the whole. Throws
// Error(kInput), with `where` in the message.
TensorFileHeader parse_gguf(std::span<const std::byte> file, uint64_t file_bytes, const std::string& where);

}  // namespace tessera::weights
