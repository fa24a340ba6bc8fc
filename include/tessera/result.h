// What a run returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/image.h"

namespace tessera {

// Holds wall-clock seconds of a run.
struct Seconds {
  double load = 0;  // for all components that were not in memory yet
  double encode = 0;
  double denoise = 0;
  double decode = 0;
  double write = 0;  // in Observer::decoded and decoded_image; not included in `decode`
  double total = 0;
};

struct Result {
  // Fp32 on the CPU, [N, C, h, w] as the denoiser takes them, before the VAE's scaling is undone; where
  // diffusers' pipeline returns something else for output_type="latent" (FLUX.2), as it returns them.
  at::Tensor latents;
  std::vector<Image> images;  // N; none for OutputType::kLatent, or if Observer::decoded_image takes them
  Seconds seconds;
  std::vector<double> step_seconds;  // in the order of the groups of pictures, and within a group of the
                                     // parts
  // Sums over the components used, which need not be in memory at the same time: the weights in the dtypes of
  // the layers, the memory that they take in the layouts of the layers, and the bytes read from the
  // checkpoint's files. None of them counts tables from which only the rows that a prompt needs are read.
  uint64_t weights_bytes = 0;
  uint64_t weights_memory_bytes = 0;
  uint64_t bytes_read = 0;
};

}  // namespace tessera
