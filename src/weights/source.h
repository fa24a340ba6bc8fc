// Where layers get their weights from: a checkpoint's files, or only the shapes that the layers ask for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera::weights {

// A range of one dimension: the part of a weight that one rank holds.
struct Slice {
  int64_t dim;
  int64_t begin;
  int64_t length;
};

class Source {
 public:
  virtual ~Source() = default;

  // Whether `key` exists; for weights that have different names in different files.
  virtual bool has(const std::string& key) const = 0;

  // Loads the tensor with the whole shape `shape`, or the part of it that `slices` (of different dimensions)
  // select, as `dtype` on `device`. On the meta device nothing is read. Throws Error(kInput) for a weight
  // that is missing or has another shape.
  virtual at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                          at::ArrayRef<Slice> slices, at::Device device) = 0;

  // Loads the whole tensor on the CPU in its stored dtype, for tables of which few rows are used.
  virtual at::Tensor stored(const std::string& key, at::IntArrayRef shape) = 0;
};

// The shape of the part that `slices` select of `shape`; they must lie in it (checked).
std::vector<int64_t> sliced_shape(const std::string& key, at::IntArrayRef shape, at::ArrayRef<Slice> slices);

// A model of which only the config is known: every weight exists on the meta device, with the requested
// shape. has() is false, so weights with several possible names have the usual one.
class ShapeOnlySource final : public Source {
 public:
  bool has(const std::string& /*key*/) const override { return false; }
  at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                  at::ArrayRef<Slice> slices, at::Device device) override;
  at::Tensor stored(const std::string& key, at::IntArrayRef shape) override;

  uint64_t bytes_held() const { return bytes_held_; }  // for everything that load() returned

 private:
  uint64_t bytes_held_ = 0;
};

}  // namespace tessera::weights
