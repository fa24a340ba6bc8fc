// A file of tensors with their names, mapped into memory: safetensors or GGUF.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/mapped_file.h"

namespace tessera::weights {

struct BlockFormat;

// The position of one tensor. `begin` and `end` count bytes from the start of the data section.
struct TensorEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin;
  uint64_t end;
  // If set, its numbers are coded in such blocks, each row consists of whole blocks, and `dtype` is the dtype
  // in which they are decoded (weights/block_format.h).
  const BlockFormat* blocks = nullptr;
};

struct TensorFileHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t data_offset;  // of the data section in the file
};

// Whether bytes of the data section may belong to no tensor.
enum class Gaps { kAllowed, kRefused };

// Throws Error(kInput), with `where` in the message, unless all tensors are within the data section, of
// `data_bytes`, and do not overlap. Each must not end before it begins.
void check_places(const TensorFileHeader& header, uint64_t data_bytes, Gaps gaps, const std::string& where);

// Its tensors are read in place, without a copy.
class TensorFile {
 public:
  // Reads and checks a header from `file`, the beginning of a file of `file_bytes`. Throws Error(kInput),
  // with `where` in the message.
  using Parser = TensorFileHeader(std::span<const std::byte> file, uint64_t file_bytes,
                                  const std::string& where);

  // Throws Error(kInput) for anything that the parser refuses.
  TensorFile(const std::filesystem::path& path, Parser& parse);

  const TensorFileHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }

  // The bytes of `entry` in the mapping, valid as long as this object lives. Throws Error(kInput) if the file
  // was written to since it was opened.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;

  // Returns the memory of the pages that lie entirely within `entry` to the system; they are read again when
  // touched.
  void release(const TensorEntry& entry) const noexcept;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  TensorFileHeader header_;
};

// Opens a file of either format, which its first bytes identify.
std::shared_ptr<TensorFile> open_tensor_file(const std::filesystem::path& path);

// The explanation for a file that ends too early.
inline constexpr std::string_view kGetFileAgain = "it is cut off or damaged; get the file again";

}  // namespace tessera::weights
