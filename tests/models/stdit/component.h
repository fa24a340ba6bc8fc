// Runs one component of Open-Sora on the inputs of a golden, on any number of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "core/json.h"
#include "parallel/options.h"

namespace tessera::models {

// Computes the outputs of a case, named as in its golden: `out.*`. `file` is the case's JSON, in whose folder
// are its tensors. Ranks are threads, as many as the degrees in `options` need. Throws Error for a kind that
// is unknown or a layout that does not fit.
std::map<std::string, at::Tensor> run_component(const std::filesystem::path& file,
                                                const parallel::ParallelOptions& options);

// All tensors of a safetensors file.
std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& file);

}  // namespace tessera::models
