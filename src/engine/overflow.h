// Explains numbers that are not finite.
#pragma once

#include <string>

#include "core/error.h"
#include "engine/request.h"

namespace tessera::engine {

// Returns suggestions for the user, as the end of a message.
std::string overflow_advice(at::ScalarType dtype);

// Where x is NaN. (ATen's own function, which computes the same, has no kernel for meta tensors.)
inline at::Tensor nan_mask(const at::Tensor& x) {
  return x.ne(x);
}

// Returns the error for latents that are not finite from step `first` of `steps` on; steps count from 0. It
// names the most likely cause: a large guidance scale, a weight that is not finite (found by reading all
// weights), a dtype other than fp32, or otherwise the model.
Error overflow_error(int64_t first, int64_t steps, const Settings& settings, const Model& model);

// Returns the error for an image that the decoder returned entirely as NaN.
Error image_overflow_error(const Settings& settings, const Model& model);

}  // namespace tessera::engine
