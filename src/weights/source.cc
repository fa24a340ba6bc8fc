#include "weights/source.h"

#include <ATen/Functions.h>

#include "core/error.h"
#include "weights/loading_hook.h"

namespace tessera::weights {

std::vector<int64_t> sliced_shape(const std::string& key, at::IntArrayRef shape, at::ArrayRef<Slice> slices) {
  std::vector<int64_t> part = shape.vec();
  for (const Slice& slice : slices) {
    TESSERA_CHECK(
        slice.dim >= 0 && slice.dim < static_cast<int64_t>(shape.size()) && slice.begin >= 0 &&
            slice.length >= 0 && slice.begin + slice.length <= shape[static_cast<size_t>(slice.dim)],
        "slice [{}, {}) of dim {} of '{}'", slice.begin, slice.begin + slice.length, slice.dim, key);
    part[static_cast<size_t>(slice.dim)] = slice.length;
  }
  return part;
}

at::Tensor ShapeOnlySource::load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                                 at::ArrayRef<Slice> slices, at::Device /*device*/) {
  // The bytes read exist beside it for a moment, as if files had this dtype (Checkpoint::load()).
  const at::Tensor read =
      at::empty(sliced_shape(key, shape, slices), at::TensorOptions().device(at::kMeta).dtype(dtype));
  at::Tensor part = at::empty_like(read);
  bytes_held_ += part.nbytes();
  record_loading({key, shape, slices, dtype, part});
  return part;
}

// The tensor is a single number, seen at every place: its rows can be selected on the CPU, as from a table in
// a file, but it takes no memory.
at::Tensor ShapeOnlySource::stored(const std::string& key, at::IntArrayRef shape) {
  at::Tensor table = at::zeros({}, at::kFloat).expand(shape);
  record_loading({key, shape, {}, at::kFloat, table});
  return table;
}

}  // namespace tessera::weights
