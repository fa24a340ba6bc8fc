// The weights in one component folder of a diffusers checkpoint (`transformer/`, `vae/`, `text_encoder/`):
// one safetensors file, or shards listed by an index.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weights/named_tensor.h"
#include "weights/source.h"

namespace tessera::weights {

// Who saved a folder: diffusers names weights diffusion_pytorch_model and prefers an index of shards to a
// single file; transformers names them model and prefers the single file.
enum class Library { kDiffusers, kTransformers };

// The library of a part, from its name in model_index.json; every name but "diffusers" means transformers.
Library library_named(const std::string& name);

// Whether a folder has weights of this variant ("fp16": `model.fp16.safetensors`, or an index of shards).
bool holds_variant(const std::filesystem::path& folder, Library library, const std::string& variant);

class Checkpoint final : public Source {
 public:
  // Uses the files in `folder` that the library would use: those of `variant` if there are any, otherwise
  // those without a variant, otherwise those of fp16. Throws Error(kInput) if there are none (listing the
  // files of other names), a shard is missing, or the index disagrees with the shards.
  Checkpoint(const std::filesystem::path& folder, Library library, const std::string& variant = {});
  // Some tensors of one file under other names.
  Checkpoint(std::shared_ptr<TensorFile> file, NamedTensors tensors);

  const std::filesystem::path& folder() const { return folder_; }  // or the path of the single file
  bool has(const std::string& key) const override;
  const TensorEntry& entry(const std::string& key) const;  // Error(kInput) if absent
  std::vector<std::string> keys() const;
  size_t num_files() const { return files_.size(); }

  // Loads the tensor, or the part of it that `slices` (of different dimensions) select, as `dtype` on
  // `device`. The result is a view of the mapping, which it keeps alive, if it is on the CPU, needs no
  // conversion, and its bytes are contiguous and aligned; otherwise it is a copy of only that part. On the
  // meta device nothing is read: loading only checks shapes and counts bytes. Marks the key as used. Throws
  // Error(kInput), naming the key and both shapes, if the whole tensor does not have the shape `shape`, or if
  // the file's dtype is not a floating-point type.
  at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                  at::ArrayRef<Slice> slices = {}, at::Device device = at::kCPU) override;

  // Loads the whole tensor on the CPU as stored, or in fp32 if the stored form is coded, for tables of which
  // few rows are used. It does not count in bytes_used() and bytes_held(), nor, if it is a view, in
  // MemoryCounter. Otherwise the same as load().
  at::Tensor stored(const std::string& key, at::IntArrayRef shape) override;

  // The same for a tensor of any dtype and shape. Throws Error(kInput) if it is absent.
  at::Tensor buffer(const std::string& key);

  // The keys that have not been loaded yet, sorted.
  std::vector<std::string> unused() const;

  uint64_t bytes_used() const { return bytes_used_; }  // bytes in the files of all that load() returned
  uint64_t bytes_held() const { return bytes_held_; }  // the same in the returned dtypes, on any device

 private:
  const NamedTensor& find(const std::string& key) const;  // Error(kInput) if absent
  // find(), plus checks; marks the tensor as used
  const NamedTensor& use(const std::string& key, at::IntArrayRef shape);
  // The whole tensor: a view of the mapping if possible; if it is stored in another form, a copy in `dtype`.
  // `held_bytes` of the mapping are in use.
  at::Tensor whole(const NamedTensor& tensor, at::ScalarType dtype, int64_t held_bytes) const;

  std::filesystem::path folder_;
  TensorFiles files_;
  NamedTensors tensors_;
  std::set<std::string> used_;
  uint64_t bytes_used_ = 0, bytes_held_ = 0;
};

// Whether a tensor in a file equals the one that is computed in its place, up to the rounding of its dtype.
bool is_near(const at::Tensor& stored, const at::Tensor& computed);

}  // namespace tessera::weights
