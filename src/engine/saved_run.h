// Where a run stands between two steps, as a value that outlives its engine.
//
// Shapes: N pictures of a group, C latent channels, h x w latent size (T frames of it for a video).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/image.h"
#include "engine/denoise.h"
#include "engine/request.h"

namespace tessera::engine {

struct SavedRun {
  std::vector<Settings> requests;
  // Everything below is empty for a run that has not begun its first step, and on ranks other than 0.
  std::optional<DenoiseState> denoising;  // of the pictures of the group
  size_t group = 0;                       // the groups before it are done
  std::vector<at::Tensor> latents;        // [N, C, (T,) h, w] of each of them
  std::vector<Image> images;              // of those groups, unless the observer has taken them
  std::vector<double> step_seconds;
};

// Returns a saved run as bytes: safetensors, whose metadata has the requests as JSON and the numbers.
std::string write_saved_run(const SavedRun& saved);
// Reads such bytes, on any machine. The requests are resolved for `model`, which must be that of the run.
// Throws Error(kInput), with `where` in the message, for bytes that are not a run, or a run with other
// shapes.
SavedRun read_saved_run(std::string_view bytes, const Model& model, const std::string& where);

}  // namespace tessera::engine
