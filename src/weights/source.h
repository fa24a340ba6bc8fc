// Where layers get their weights from: a checkpoint's files, or nothing but the shapes that the layers ask
// for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera::weights {

// A range of one dimension: what one rank holds of a weight.
struct Slice {
  int64_t dim;
  int64_t begin;
  int64_t length;
};

class Source {
 public:
  virtual ~Source() = default;

  // Whether `key` is there, where files name one weight in several ways.
  virtual bool has(const std::string& key) const = 0;

  // The tensor of the whole shape `shape`, or the part of it that `slices` leave (of different dimensions),
  // in `dtype` on `device`. On the meta device nothing is read. Throws Error(kInput) for a weight that is not
  // there or of another shape.
  virtual at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                          at::ArrayRef<Slice> slices, at::Device device) = 0;

  // The whole tensor on the CPU in the dtype that it is stored in: for tables of which few rows are used.
  virtual at::Tensor stored(const std::string& key, at::IntArrayRef shape) = 0;
};

// The shape that `slices` leave of `shape`; they must lie in it (checked).
std::vector<int64_t> sliced_shape(const std::string& key, at::IntArrayRef shape, at::ArrayRef<Slice> slices);

// A model of which only its config is known: every weight is there, in the shape that is asked for, on the
// meta device. Where files may name a weight in several ways, it has the usual name.
class ShapeOnlySource final : public Source {
 public:
  bool has(const std::string& /*key*/) const override { return false; }
  at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                  at::ArrayRef<Slice> slices, at::Device device) override;
  at::Tensor stored(const std::string& key, at::IntArrayRef shape) override;

  uint64_t bytes_held() const { return bytes_held_; }  // of what load() gave

 private:
  uint64_t bytes_held_ = 0;
};

}  // namespace tessera::weights
