// Stable Diffusion in a single .safetensors file, as commonly distributed, with the names of the code that it
// was trained with (https://github.com/CompVis/stable-diffusion, Stability-AI/generative-models,
// mlfoundations/open_clip).
#pragma once

#include <map>
#include <string>

#include "weights/checkpoint.h"

namespace tessera::weights {

// Returns what the folder `part` of diffusers' layout ("unet", "vae", "text_encoder", "text_encoder_2") would
// contain, under diffusers' names; each is a tensor of the file, or some rows of one. The names in the file
// determine which blocks there are. Returns an empty map if the file has nothing of the part.
std::map<std::string, NamedTensor> single_file_part(const SafetensorsHeader& header, const std::string& part);

}  // namespace tessera::weights
