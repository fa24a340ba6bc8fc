// Tensors of a file under the names that layers ask for, with the factors of their numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weights/source.h"
#include "weights/tensor_file.h"

namespace tessera::weights {

// The files of a part of a model: a single one, or its shards.
using TensorFiles = std::vector<std::shared_ptr<TensorFile>>;

// The factor of a whole tensor, or, with as many numbers as the stored tensor has rows, of each row.
struct Factor {
  TensorEntry entry;
  size_t file;  // which of the files it is in
};

// A tensor of a file, or rows of one.
struct NamedTensor {
  TensorEntry entry;                // with the shape that layers ask for
  bool is_transposed = false;       // stored as [entry.shape[1], entry.shape[0]]
  bool has_halves_swapped = false;  // the second half of its rows is stored before the first
  std::optional<Factor> factor = {};
  size_t file = 0;  // which of the files it is in

  // Whether its numbers differ from the stored ones.
  bool is_coded() const { return entry.blocks || factor; }
};

using NamedTensors = std::map<std::string, NamedTensor>;

// The tensors of files under the files' names. Factors of 8-bit weights, which any of the files may contain,
// are attached to them: X.scale_weight and X.weight_scale to X.weight, with one number or one for each row.
// Factors for the inputs of such layers (X.scale_input, X.input_scale) are left out, because inputs are not
// quantised here. Throws Error(kInput) naming a tensor that is in two files, or one that shows that weights
// are coded in another way.
NamedTensors named_tensors(const TensorFiles& files);

// Selects part `part` of this many equal parts of a tensor's rows. If the rows cannot be divided in this way,
// the tensor stays whole, and its reader refuses its shape.
void take_rows(NamedTensor& tensor, int64_t part, int64_t parts);

// The number of bytes in a file for this many numbers of a tensor.
int64_t bytes_in_file(const TensorEntry& entry, int64_t count);

// An uncoded tensor as stored: a view of the mapping, of which `held_bytes` are in use, or a copy if the
// bytes are not aligned.
at::Tensor mapped_tensor(const std::shared_ptr<TensorFile>& file, const TensorEntry& entry,
                         int64_t held_bytes);

// The part of a coded tensor of `files` that `slices` (of the stored tensor) select, in `dtype`: its numbers
// are computed in fp32 and rounded once. While it is read, `held_bytes` of the mapping are in use.
at::Tensor decoded_tensor(const TensorFiles& files, const NamedTensor& tensor, at::ScalarType dtype,
                          at::ArrayRef<Slice> slices, int64_t held_bytes);

}  // namespace tessera::weights
