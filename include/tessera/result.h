// What a run returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/image.h"

namespace tessera {

// Holds wall-clock seconds of a run.
struct Seconds {
  double load = 0;  // for all components that were not loaded yet
  double encode = 0;
  double denoise = 0;
  double decode = 0;
  double write = 0;  // in Observer::decoded and decoded_image; no part of `decode`
  double total = 0;
};

struct Result {
  // Fp32 on the CPU, [N, C, h, w] as the denoiser takes them, so that the VAE's scaling is not undone, or as
  // the pipeline of diffusers returns them for output_type="latent" where that differs (FLUX.2).
  at::Tensor latents;
  std::vector<Image> images;  // N; none for OutputType::kLatent, or if Observer::decoded_image takes them
  Seconds seconds;
  std::vector<double> step_seconds;  // group after group of the pictures, and in each part after part
  // Sums over the components used, which need not be in memory at the same time: the weights in the dtypes of
  // the layers, what they take in memory in the layouts of the layers, and what is read from the checkpoint's
  // files. None counts tables of which only the rows that a prompt needs are read from the file.
  uint64_t weights_bytes = 0;
  uint64_t weights_memory_bytes = 0;
  uint64_t bytes_read = 0;
};

}  // namespace tessera
