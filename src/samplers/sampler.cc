#include "samplers/sampler.h"

#include <algorithm>
#include <exception>

#include "core/error.h"
#include "core/log.h"
#include "samplers/consistency.h"
#include "samplers/ddim.h"
#include "samplers/ddpm.h"
#include "samplers/deis.h"
#include "samplers/dpm_solver.h"
#include "samplers/edm.h"
#include "samplers/euler.h"
#include "samplers/flow_match.h"
#include "samplers/heun.h"
#include "samplers/lms.h"
#include "samplers/options.h"
#include "samplers/pndm.h"
#include "samplers/sa_solver.h"
#include "samplers/unipc.h"

namespace tessera::samplers {
namespace {

struct Row {
  SamplerName name;
  std::unique_ptr<Sampler> (*make)(const JsonConfig& config, const SamplerRun& run);
  Json overrides = Json::object();  // options that the short name implies
  // Options that the short name implies if the file is of another class and does not set them. By default,
  // diffusers' DDIM clips, which suits pixels but not latents, and its PNDM warms up with 12 evaluations of
  // the model, which no released latent model does.
  Json defaults = Json::object();
  // The values of options that the file lacks, where this class has others in diffusers than most.
  Json class_defaults = Json::object();
};

constexpr int64_t kMaxTrainTimesteps = 1'000'000;

// All samplers. A class may have several short names; the first row has the plain class.
const std::vector<Row>& rows() {
  const Json latent_betas = {{"beta_start", 0.00085}, {"beta_end", 0.012}};
  const Json scaled_betas = {
      {"beta_start", 0.00085}, {"beta_end", 0.012}, {"beta_schedule", "scaled_linear"}};
  static const std::vector<Row> table = {
      {.name = {"ddim", "DDIMScheduler", {"eta"}}, .make = make_ddim, .defaults = {{"clip_sample", false}}},
      {.name = {"pndm", "PNDMScheduler"}, .make = make_pndm, .defaults = {{"skip_prk_steps", true}}},
      {.name = {"euler", "EulerDiscreteScheduler"}, .make = make_euler},
      {.name = {"euler-a", "EulerAncestralDiscreteScheduler"}, .make = make_euler_ancestral},
      {.name = {"dpm++", "DPMSolverMultistepScheduler"},
       .make = make_dpm_solver,
       .overrides = {{"algorithm_type", "dpmsolver++"}}},
      {.name = {"dpm++-sde", "DPMSolverMultistepScheduler"},
       .make = make_dpm_solver,
       .overrides = {{"algorithm_type", "sde-dpmsolver++"}}},
      {.name = {"dpm++-singlestep", "DPMSolverSinglestepScheduler"},
       .make = make_dpm_singlestep,
       .overrides = {{"algorithm_type", "dpmsolver++"}}},
      {.name = {"deis", "DEISMultistepScheduler"}, .make = make_deis},
      {.name = {"sa-solver", "SASolverScheduler"},
       .make = make_sa_solver,
       .overrides = {{"algorithm_type", "data_prediction"}}},
      {.name = {"unipc", "UniPCMultistepScheduler"}, .make = make_unipc},
      {.name = {"ddpm", "DDPMScheduler"}, .make = make_ddpm, .defaults = {{"clip_sample", false}}},
      {.name = {"lms", "LMSDiscreteScheduler"}, .make = make_lms},
      {.name = {"heun", "HeunDiscreteScheduler"}, .make = make_heun, .class_defaults = latent_betas},
      {.name = {"kdpm2", "KDPM2DiscreteScheduler"}, .make = make_kdpm2, .class_defaults = latent_betas},
      {.name = {"kdpm2-a", "KDPM2AncestralDiscreteScheduler"},
       .make = make_kdpm2_ancestral,
       .class_defaults = latent_betas},
      {.name = {"lcm", "LCMScheduler"}, .make = make_lcm, .class_defaults = scaled_betas},
      {.name = {"tcd", "TCDScheduler", {"eta"}}, .make = make_tcd, .class_defaults = scaled_betas},
      {.name = {"edm-euler", "EDMEulerScheduler"}, .make = make_edm_euler},
      {.name = {"edm-dpm++", "EDMDPMSolverMultistepScheduler"},
       .make = make_edm_dpm_solver,
       .overrides = {{"algorithm_type", "dpmsolver++"}}},
      {.name = {"flow-euler", "FlowMatchEulerDiscreteScheduler"}, .make = make_flow_euler},
  };
  return table;
}

std::string known_names() {
  std::vector<std::string> names;
  for (const Row& row : rows()) names.push_back(row.name.short_name);
  return fmt::format("{}", fmt::join(names, ", "));
}

const Row* find_row(const std::string& name) {
  for (const Row& row : rows()) {
    if (name == row.name.short_name || name == row.name.class_name) return &row;
  }
  return nullptr;
}

// Whether a model whose file is of this class expects the noise of flow matching.
bool is_made_for_flow(const JsonConfig& config, const std::string& class_name) {
  return class_name.starts_with("FlowMatch") || config.boolean("use_flow_sigmas", false);
}

// Whether this sampler gives it such noise; the other classes do not know the option.
bool runs_as_flow(const JsonConfig& config, const std::string& class_name) {
  const bool knows_option = class_name.starts_with("DPMSolver") || class_name.starts_with("DEIS") ||
                            class_name.starts_with("SASolver") || class_name.starts_with("UniPC");
  return class_name.starts_with("FlowMatch") || (knows_option && config.boolean("use_flow_sigmas", false));
}

// If only the number of steps is at fault, the error names the largest smaller number that works.
std::unique_ptr<Sampler> make_with_steps(const Row& row, const JsonConfig& config, const SamplerRun& run,
                                         int64_t train_timesteps) {
  SamplerRun fewer = run;
  fewer.steps = std::min(run.steps, train_timesteps);
  std::exception_ptr refusal;
  constexpr int64_t kAttempts = 1000;  // each one makes a schedule
  const int64_t least = std::max<int64_t>(fewer.steps - kAttempts, 0);
  for (; fewer.steps > least; --fewer.steps) {
    try {
      std::unique_ptr<Sampler> sampler = row.make(config, fewer);
      if (fewer.steps == run.steps) return sampler;
      break;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
      if (!refusal) refusal = std::current_exception();
    }
  }
  if (fewer.steps == least) std::rethrow_exception(refusal);
  usage_error(field("num_inference_steps"), "must be at most {} with {} and the options of {}, got {}",
              fewer.steps, row.name.short_name, config.where(), run.steps);
}

}  // namespace

at::Tensor Sampler::scale_model_input(const at::Tensor& z, int64_t /*index*/) const {
  return z;
}

const std::vector<SamplerName>& known_samplers() {
  static const std::vector<SamplerName> names = [] {
    std::vector<SamplerName> result;
    for (const Row& row : rows()) result.push_back(row.name);
    return result;
  }();
  return names;
}

std::unique_ptr<Sampler> make_sampler(const JsonConfig& config, const std::optional<std::string>& name,
                                      const SamplerRun& run) {
  const std::string file_class = config.string("_class_name", name ? "" : std::optional<std::string>());
  const Row* row = find_row(name.value_or(file_class));
  if (!row && name)
    usage_error(field("scheduler"), "unknown sampler '{}'; known are {}", *name, known_names());
  if (!row)
    input_error(config.where(), "the model's sampler, {}, cannot run yet; give {} one of {}", file_class,
                field("scheduler"), known_names());
  warn_of_unknown_options(config);
  const int64_t train_timesteps = config.integer("num_train_timesteps", 1000);
  if (train_timesteps < 1 || train_timesteps > kMaxTrainTimesteps) {
    config.fail("num_train_timesteps", fmt::format("from 1 to {}", kMaxTrainTimesteps));
  }
  if (run.steps < 1) usage_error(field("num_inference_steps"), "must be 1 or more, got {}", run.steps);
  if (!(run.eta >= 0 && run.eta <= 1)) usage_error(field("eta"), "must be from 0 to 1, got {}", run.eta);
  const bool is_short = name == row->name.short_name;
  Json options = config.values();
  if (name && !(is_short && file_class == row->name.class_name)) options = without_pipeline_defaults(config);
  if (is_short) {
    options.update(row->overrides);
    if (!file_class.empty() && file_class != row->name.class_name) {
      for (const auto& [key, value] : row->defaults.items()) options.emplace(key, value);
    }
  }
  for (const auto& [key, value] : row->class_defaults.items()) options.emplace(key, value);
  const JsonConfig effective(std::move(options), config.where());
  const bool other_noise =
      is_made_for_flow(config, file_class) != runs_as_flow(effective, row->name.class_name) ||
      file_class.starts_with("EDM") != row->name.class_name.starts_with("EDM");
  if (!file_class.empty() && other_noise) {
    log_warning(
        "[{}] the model was made for {}; {} expects another kind of noise and is unlikely to give an image",
        config.where(), file_class, row->name.class_name);
  }
  return make_with_steps(*row, effective, run, train_timesteps);
}

}  // namespace tessera::samplers
