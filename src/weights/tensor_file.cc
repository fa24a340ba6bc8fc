#include "weights/tensor_file.h"

#include "weights/gguf.h"
#include "weights/safetensors.h"

namespace tessera::weights {
namespace {

TensorFileHeader parse_either(std::span<const std::byte> file, uint64_t file_bytes,
                              const std::string& where) {
  const bool gguf = is_gguf({reinterpret_cast<const char*>(file.data()), file.size()});
  return gguf ? parse_gguf(file, file_bytes, where) : parse_safetensors(file, file_bytes, where);
}

}  // namespace

TensorFile::TensorFile(const std::filesystem::path& path, Parser& parse)
    : path_(path), file_(path), header_(parse(file_.bytes(), file_.bytes().size(), path.string())) {}

std::span<const std::byte> TensorFile::bytes(const TensorEntry& entry) const {
  file_.require_unchanged();
  return file_.bytes().subspan(header_.data_offset + entry.begin, entry.end - entry.begin);
}

void TensorFile::release(const TensorEntry& entry) const noexcept {
  file_.release(header_.data_offset + entry.begin, header_.data_offset + entry.end);
}

std::shared_ptr<TensorFile> open_tensor_file(const std::filesystem::path& path) {
  return std::make_shared<TensorFile>(path, parse_either);
}

}  // namespace tessera::weights
