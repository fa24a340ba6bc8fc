// A file with only a denoiser, with the names of the code that it was trained with (Z-Image:
// https://github.com/Tongyi-MAI/Z-Image, FLUX.2: https://github.com/black-forest-labs/flux2) or with those of
// diffusers.
#pragma once

#include <string>
#include <string_view>

#include "weights/named_tensor.h"
#include "weights/tensor_file.h"

namespace tessera::weights {

// What the names of a file's tensors reveal about it.
struct KnownFile {
  std::string_view title;       // of the model
  std::string_view class_name;  // diffusers' name for the denoiser; empty for one that is not supported
  std::string_view key;         // identifies the model
};
// nullptr if the names belong to no known model.
const KnownFile* recognise(const TensorFileHeader& header);

// Whether a part of a model is in such a file: for models that are known only as denoisers, just
// "transformer"; otherwise all parts.
bool is_in_single_file(const TensorFileHeader& header, std::string_view part);

// The tensors of a denoiser under diffusers' names, each a tensor of the file, or some rows of one. All
// others keep their names, so that nothing goes unnoticed. Returns nothing for a file of an unknown model.
// Throws Error(kInput) if two tensors would get the same name.
NamedTensors denoiser_tensors(const NamedTensors& tensors);

// The name in such a file of the tensor that holds diffusers' weight `key`; empty if the names are the same,
// and if the names of the file are diffusers' or belong to no known model.
std::string original_name(const TensorFileHeader& header, const std::string& key);

}  // namespace tessera::weights
