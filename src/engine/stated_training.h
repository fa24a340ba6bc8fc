// Reads what a single file states about the training of its model. Configs come from another folder, so only
// these statements can show that they do not fit.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"

namespace tessera::engine {

// Returns a warning for each statement of the model's single file that the scheduler of the request
// contradicts: the prediction and the terminal SNR (empty tensors `v_pred` and `ztsnr`,
// `modelspec.prediction_type`), EDM's noise levels (`edm_mean`, `edm_vpred.sigma_max`), the noise levels of
// training (`alphas_cumprod`, `denoiser.sigmas`). Like diffusers, a run follows the scheduler.
std::vector<std::string> stated_otherwise(const Model& model, const Request& request);

}  // namespace tessera::engine
