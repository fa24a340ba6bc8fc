// The weights of one component folder of a diffusers checkpoint (`transformer/`, `vae/`, `text_encoder/`):
// one safetensors file, or shards listed by an index.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weights/safetensors.h"
#include "weights/source.h"

namespace tessera::weights {

// A tensor of a file, or rows of one, under the name that layers ask for.
struct NamedTensor {
  TensorEntry entry;           // with the shape that layers ask for
  bool is_transposed = false;  // against what lies in the file: [entry.shape[1], entry.shape[0]]
};

class Checkpoint final : public Source {
 public:
  // Finds the weights in `folder`: `*.safetensors.index.json`, else the one `*.safetensors`, else the same
  // with a variant (`.fp16.` or `.bf16.`). Plain files win over variants. Throws Error(kInput) when there are
  // none (also when only `.bin` files are there), a shard is missing, or the index disagrees with the shards.
  explicit Checkpoint(const std::filesystem::path& folder);
  // Some tensors of one file, under other names.
  Checkpoint(std::shared_ptr<SafetensorsFile> file, std::map<std::string, NamedTensor> tensors);

  const std::filesystem::path& folder() const { return folder_; }  // or the one file
  bool has(const std::string& key) const override;
  const TensorEntry& entry(const std::string& key) const;  // Error(kInput) when absent
  std::vector<std::string> keys() const;

  // The tensor, or the part of it that `slices` leave (of different dimensions), in `dtype` on `device`. On
  // the CPU, without conversion and when the bytes are contiguous and aligned it is a view of the mapping,
  // which stays alive with the tensor; otherwise a copy of just the part. On the meta device nothing is read:
  // loading there checks shapes and counts bytes. Marks the key as used. Throws Error(kInput) naming the key
  // and both shapes when the shape is not `shape` (that of the whole), or when the dtype in the file is no
  // floating-point type.
  at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                  at::ArrayRef<Slice> slices = {}, at::Device device = at::kCPU) override;

  // The tensor as it lies in the file, on the CPU; for tables of which few rows are used. Counts neither as
  // read nor as held (MemoryCounter) where it is a view. Else like load().
  at::Tensor stored(const std::string& key, at::IntArrayRef shape) override;

  // Keys that nothing has loaded so far, sorted.
  std::vector<std::string> unused() const;

  // The most common floating-point dtype of the weights, by bytes.
  at::ScalarType dtype() const;

  uint64_t bytes_used() const { return bytes_used_; }  // bytes of the files that load() was asked for
  uint64_t bytes_held() const { return bytes_held_; }  // the same in the dtypes that it gave, on any device

 private:
  struct Place {
    size_t file;  // index in files_
    NamedTensor tensor;
  };

  void add_file(const std::filesystem::path& path);
  const Place& find(const std::string& key) const;                  // Error(kInput) when absent
  const Place& use(const std::string& key, at::IntArrayRef shape);  // checked and marked
  // A view of the mapping where that can be, of which `held_bytes` are in use.
  at::Tensor view(const Place& place, int64_t held_bytes) const;

  std::filesystem::path folder_;
  std::vector<std::shared_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> places_;  // by key
  std::set<std::string> used_;
  uint64_t bytes_used_ = 0, bytes_held_ = 0;
};

}  // namespace tessera::weights
