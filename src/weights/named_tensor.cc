#include "weights/named_tensor.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "weights/block_format.h"
#include "weights/memory_counter.h"

namespace tessera::weights {
namespace {

constexpr int64_t kNumbersAtOnce = 1 << 20;  // decoding needs as many words besides the result
constexpr int64_t kNumbersOfThread = 1 << 13;

int64_t product_of(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// Rows of a coded tensor; a tensor with fewer than two dimensions is a single row.
struct CodedRows {
  CodedRows(const TensorFiles& files, const NamedTensor& tensor, int64_t held_bytes)
      : is_matrix(tensor.entry.shape.size() >= 2), blocks(tensor.entry.blocks) {
    const std::vector<int64_t>& shape = tensor.entry.shape;
    count = is_matrix ? shape.front() : 1;
    size = count == 0 ? 0 : product_of(shape) / count;
    TensorEntry entry = tensor.entry;
    entry.shape = {count, size};
    if (blocks) {
      entry.dtype = at::kByte;
      entry.shape[1] = bytes_in_file(tensor.entry, size);
    }
    stored = mapped_tensor(files[tensor.file], entry, held_bytes);
    if (!tensor.factor) return;
    const Factor& own = *tensor.factor;
    factor = mapped_tensor(files[own.file], own.entry, /*held_bytes=*/0).to(at::kFloat);
    factor = is_matrix ? factor.reshape({-1, 1}) : factor.reshape({1, -1});
  }

  // fp32 [length, size]
  at::Tensor decoded(int64_t begin, int64_t length) const {
    const at::Tensor rows = stored.narrow(0, begin, length);
    if (blocks) return decoded_blocks(rows);
    const bool is_by_row = is_matrix && factor.size(0) > 1;
    return rows.to(at::kFloat).mul_(is_by_row ? factor.narrow(0, begin, length) : factor);
  }

  at::Tensor decoded_blocks(const at::Tensor& rows) const {
    at::Tensor numbers = at::empty({rows.size(0), size}, at::kFloat);
    const auto* const from = static_cast<const std::byte*>(rows.const_data_ptr());
    auto* const to = numbers.mutable_data_ptr<float>();
    at::parallel_for(0, numbers.numel() / blocks->numbers, kNumbersOfThread / blocks->numbers,
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i)
                         blocks->decode(from + i * blocks->bytes, to + i * blocks->numbers);
                     });
    return numbers;
  }

  bool is_matrix;
  const BlockFormat* blocks;
  int64_t count = 0, size = 0;
  at::Tensor stored, factor;
};

}  // namespace

void take_rows(NamedTensor& tensor, int64_t part, int64_t parts) {
  const auto take = [&](TensorEntry& entry) {
    const uint64_t bytes = (entry.end - entry.begin) / static_cast<uint64_t>(parts);
    entry.shape.front() /= parts;
    entry.begin += static_cast<uint64_t>(part) * bytes;
    entry.end = entry.begin + bytes;
  };
  const std::vector<int64_t>& shape = tensor.entry.shape;
  // A single row need not consist of whole blocks.
  if (shape.empty() || shape.front() % parts != 0 || (tensor.entry.blocks && shape.size() < 2)) return;
  if (tensor.factor && product_of(tensor.factor->entry.shape) > 1) take(tensor.factor->entry);
  take(tensor.entry);
}

int64_t bytes_in_file(const TensorEntry& entry, int64_t count) {
  return entry.blocks ? count * entry.blocks->bytes / entry.blocks->numbers
                      : count * static_cast<int64_t>(c10::elementSize(entry.dtype));
}

at::Tensor mapped_tensor(const std::shared_ptr<TensorFile>& file, const TensorEntry& entry,
                         int64_t held_bytes) {
  const std::span<const std::byte> bytes = file->bytes(entry);
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % c10::elementSize(entry.dtype) == 0;
  const auto options = at::TensorOptions().dtype(entry.dtype);
  if (!aligned) {
    at::Tensor copy = at::empty(entry.shape, options);
    std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    return copy;
  }
  // The deleter keeps the mapping alive as long as any tensor views it. When the last view is gone, because
  // the weight was converted or packed, its pages need not stay in memory.
  MemoryCounter::add_view(const_cast<std::byte*>(bytes.data()), held_bytes);
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), entry.shape,
      [file, entry, held_bytes](void* data) {
        MemoryCounter::add_view(data, -held_bytes);
        file->release(entry);
      },
      options);
}

at::Tensor decoded_tensor(const TensorFiles& files, const NamedTensor& tensor, at::ScalarType dtype,
                          at::ArrayRef<Slice> slices, int64_t held_bytes) {
  const CodedRows rows(files, tensor, held_bytes);
  std::vector<int64_t> shape = tensor.entry.shape;
  at::Tensor part = at::empty(sliced_shape(files[tensor.file]->path().string(), shape, slices), dtype);
  Slice own{0, 0, rows.count};
  for (const Slice& slice : slices) {
    if (rows.is_matrix && slice.dim == 0) own = slice;
  }
  const int64_t most = std::max<int64_t>(kNumbersAtOnce / std::max<int64_t>(rows.size, 1), 1);
  for (int64_t at = 0; at < own.length; at += most) {
    const int64_t length = std::min(most, own.length - at);
    if (rows.is_matrix) shape.front() = length;
    at::Tensor numbers = rows.decoded(own.begin + at, length).view(shape);
    for (const Slice& slice : slices) {
      if (!rows.is_matrix || slice.dim != 0) numbers = numbers.narrow(slice.dim, slice.begin, slice.length);
    }
    (rows.is_matrix ? part.narrow(0, at, length) : part).copy_(numbers);
  }
  return part;
}

}  // namespace tessera::weights
