// Tensors of a file under the names that layers ask for, with what their numbers are multiplied by.
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

// The files of a part of a model: one, or its shards.
using TensorFiles = std::vector<std::shared_ptr<TensorFile>>;

// What all of a tensor is multiplied by, or, with as many numbers as the tensor is stored with rows, each
// row.
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

  // Whether its numbers are not those that are stored.
  bool is_coded() const { return entry.blocks || factor; }
};

using NamedTensors = std::map<std::string, NamedTensor>;

// The tensors of files under the files' names. A factor of weights of eight bits, which any of the files may
// hold, becomes theirs: X.scale_weight and X.weight_scale of X.weight, one number or one for each row.
// Factors of what such a layer takes are left out (X.scale_input, X.input_scale), for it takes what it is
// given. Throws Error(kInput) that names a tensor that two files hold, and what says that weights are coded
// in other ways.
NamedTensors named_tensors(const TensorFiles& files);

// Selects part `part` of so many equal parts of a tensor's rows. One that cannot be cut so stays whole, and
// its reader refuses its shape.
void take_rows(NamedTensor& tensor, int64_t part, int64_t parts);

// The bytes in a file of so many numbers of a tensor.
int64_t bytes_in_file(const TensorEntry& entry, int64_t count);

// A tensor as it is stored, which is not coded: a view of the mapping, of which `held_bytes` are in use; a
// copy if the bytes are not aligned.
at::Tensor mapped_tensor(const std::shared_ptr<TensorFile>& file, const TensorEntry& entry,
                         int64_t held_bytes);

// The part of a coded tensor of `files`, as it is stored, that `slices` select, in `dtype`: its numbers are
// computed in fp32 and rounded once. While it is read, `held_bytes` of the mapping are in use.
at::Tensor decoded_tensor(const TensorFiles& files, const NamedTensor& tensor, at::ScalarType dtype,
                          at::ArrayRef<Slice> slices, int64_t held_bytes);

}  // namespace tessera::weights
