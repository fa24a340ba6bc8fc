#include "weights/tensor_file.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "weights/gguf.h"
#include "weights/safetensors.h"

namespace tessera::weights {
namespace {

TensorFileHeader parse_either(std::span<const std::byte> file, uint64_t file_bytes,
                              const std::string& where) {
  constexpr uint64_t kTooShort = 8;  // too short for either format; the name then decides
  const bool gguf = is_gguf({reinterpret_cast<const char*>(file.data()), file.size()}) ||
                    (file_bytes < kTooShort && where.ends_with(".gguf"));
  return gguf ? parse_gguf(file, file_bytes, where) : parse_safetensors(file, file_bytes, where);
}

}  // namespace

void check_places(const TensorFileHeader& header, uint64_t data_bytes, Gaps gaps, const std::string& where) {
  std::vector<std::pair<const std::string*, const TensorEntry*>> order;
  for (const auto& [key, entry] : header.tensors) order.emplace_back(&key, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second->begin, a.second->end) < std::tie(b.second->begin, b.second->end);
  });
  uint64_t end = 0;
  for (const auto& [key, entry] : order) {
    if (entry->end > data_bytes)
      input_error(where, "'{}': ends at byte {} of the data, but the file holds only {}: {}", *key,
                  entry->end, data_bytes, kGetFileAgain);
    if (entry->begin < end) input_error(where, "'{}': overlaps the tensor before it", *key);
    if (entry->begin > end && gaps == Gaps::kRefused)
      input_error(where, "'{}': a gap of {} before it belongs to no tensor", *key,
                  counted(static_cast<int64_t>(entry->begin - end), "byte"));
    end = entry->end;
  }
  if (end != data_bytes && gaps == Gaps::kRefused)
    input_error(where, "the tensors end at byte {} of the data, but the file holds {}", end, data_bytes);
}

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
