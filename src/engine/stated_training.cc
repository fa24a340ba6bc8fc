#include "engine/stated_training.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "samplers/options.h"
#include "samplers/schedule.h"
#include "weights/checkpoint.h"
#include "weights/single_file.h"

namespace tessera::engine {
namespace {

constexpr const char* kZeroSnr = "rescale_betas_zero_snr";

// The scheduler that the model is run with.
struct Scheduler {
  std::string class_name;
  JsonConfig options;
};

Scheduler scheduler_of(const Model& model, const Request& request) {
  Json options = model.scheduler.values();
  options.update(samplers::parse_options(request.scheduler_options));
  return {scheduler_class(request, model), model.scheduler.with(std::move(options))};
}

void compare_prediction(const weights::StatedTraining& stated, const Scheduler& scheduler,
                        std::vector<std::string>& warnings) {
  std::vector<std::string> says;
  const std::string own = scheduler.options.string("prediction_type", "epsilon", Null::kDefault);
  if (!stated.prediction.empty() && stated.prediction != own) {
    says.push_back("prediction_type=" + stated.prediction);
  }
  if (stated.zero_snr && !scheduler.options.boolean(kZeroSnr, false)) {
    says.push_back(std::string(kZeroSnr) + "=true");
  }
  if (says.empty()) return;
  const std::string option = field("scheduler_option");
  warnings.push_back(fmt::format("says that it was trained otherwise than the scheduler runs it; give {} {}",
                                 option, fmt::join(says, " " + option + " ")));
}

// Returns the noise levels of training from the file, as falling fp64 products of alphas.
std::optional<at::Tensor> stored_levels(const std::shared_ptr<weights::TensorFile>& file, std::string& key) {
  std::map<std::string, weights::NamedTensor> levels;
  for (const char* name : {"alphas_cumprod", "denoiser.sigmas"}) {
    const auto found = file->header().tensors.find(name);
    if (found == file->header().tensors.end() || !at::isFloatingType(found->second.dtype)) continue;
    key = name;
    levels.emplace(name, weights::NamedTensor{found->second});
  }
  if (levels.empty()) return std::nullopt;
  const at::Tensor stored = weights::Checkpoint(file, levels).buffer(key).to(at::kDouble).flatten();
  const at::Tensor products = key == "alphas_cumprod" ? stored : 1 / (1 + stored.square());
  return std::get<0>(products.sort(/*dim=*/0, /*descending=*/true)).to(at::kDouble);
}

void compare_levels(const Model& model, const Scheduler& scheduler, std::vector<std::string>& warnings) {
  if (!samplers::has_option(scheduler.class_name, "beta_schedule")) return;
  std::string key;
  const auto stored = stored_levels(model.single_file, key);
  if (!stored) return;
  const bool rescales = samplers::has_option(scheduler.class_name, kZeroSnr);
  const std::vector<float> own =
      samplers::training_schedule(scheduler.options,
                                  rescales ? samplers::ZeroSnr::kExactly : samplers::ZeroSnr::kIgnored)
          .alphas_cumprod;
  if (weights::is_near(*stored, at::tensor(own))) return;
  warnings.push_back(fmt::format(
      "'{}' holds other noise levels than the scheduler has, which count; if those of the file are "
      "right, give their beta_start, beta_end and beta_schedule by {}",
      key, field("scheduler_option")));
}

}  // namespace

std::vector<std::string> stated_otherwise(const Model& model, const Request& request) try {
  if (!model.single_file) return {};
  std::vector<std::string> warnings;
  const Scheduler scheduler = scheduler_of(model, request);
  const weights::StatedTraining stated = weights::stated_training(model.single_file->header());
  if (!stated.edm.empty() && !scheduler.class_name.starts_with("EDM")) {
    warnings.push_back(
        fmt::format("'{}' says that the model has EDM's noise levels, and {} has others; give "
                    "{} edm-dpm++ or edm-euler",
                    stated.edm, scheduler.class_name, field("scheduler")));
  } else {
    compare_prediction(stated, scheduler, warnings);
  }
  if (stated.edm.empty() && warnings.empty()) compare_levels(model, scheduler, warnings);
  for (std::string& each : warnings) each = fmt::format("[{}] {}", model.single_file->path().string(), each);
  return warnings;
} catch (const Error&) {  // make_sampler() refuses such options
  return {};
}

}  // namespace tessera::engine
