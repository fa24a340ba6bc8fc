// Stable Diffusion in a single .safetensors file, as commonly distributed, with the names of the code that it
// was trained with (https://github.com/CompVis/stable-diffusion, Stability-AI/generative-models,
// mlfoundations/open_clip).
#pragma once

#include <optional>
#include <string>

#include "weights/named_tensor.h"

namespace tessera::weights {

// Returns what the folder `part` of diffusers' layout ("unet", "vae", "text_encoder", "text_encoder_2") would
// contain, under diffusers' names; each is a tensor of the file, or some rows of one. The names in the file
// determine which blocks there are. Returns nothing if the file does not contain the part. For "transformer",
// see weights/denoiser_file.h.
NamedTensors single_file_part(const NamedTensors& tensors, const std::string& part);

// Throws Error(kInput) with the type of the file if it is known to contain an addition to a model: a LoRA, an
// embedding, a ControlNet.
void refuse_additions(const TensorFileHeader& header, const std::string& where);
// The same, and also for a VAE alone.
void require_whole_model(const TensorFileHeader& header, const std::string& where);
// Whether the text encoders of the file are those of Stable Diffusion XL, or of 1.x and 2.x; empty if it has
// none.
std::optional<bool> is_of_xl(const TensorFileHeader& header);

// What a file states about how its model was trained.
struct StatedTraining {
  std::string prediction;  // "epsilon", "v_prediction", or empty if not stated
  bool zero_snr = false;   // whether the last noise level of training is pure noise
  std::string edm;         // the tensor which shows that the levels are those of EDM, or empty
};
StatedTraining stated_training(const TensorFileHeader& header);

}  // namespace tessera::weights
