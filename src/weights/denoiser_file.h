// A file with a denoiser alone, with the names of the code that it was trained with (Z-Image:
// https://github.com/Tongyi-MAI/Z-Image, FLUX.2: https://github.com/black-forest-labs/flux2) or of diffusers.
#pragma once

#include <string>
#include <string_view>

#include "weights/named_tensor.h"
#include "weights/tensor_file.h"

namespace tessera::weights {

// What the names of a file's tensors tell of it.
struct KnownFile {
  std::string_view title;       // of the model
  std::string_view class_name;  // diffusers' for the denoiser; empty for one that cannot run here
  std::string_view key;         // tells the model
};
// nullptr if the names are of no model that is known.
const KnownFile* recognise(const TensorFileHeader& header);

// Whether a part of a model is in such a file: of models that are known as denoisers alone only
// "transformer", otherwise all.
bool is_in_single_file(const TensorFileHeader& header, std::string_view part);

// The tensors of a denoiser under diffusers' names, each a tensor of the file, or some rows of one. All
// others keep their names, so that nothing goes unnoticed. Returns nothing for a file of no known model.
// Throws Error(kInput) where two tensors would have one name.
NamedTensors denoiser_tensors(const NamedTensors& tensors);

// The name in such a file of the tensor that holds the weight `key` of diffusers; empty if that has the
// same name, and if the names of the file are diffusers' or of no model that is known.
std::string original_name(const TensorFileHeader& header, const std::string& key);

}  // namespace tessera::weights
