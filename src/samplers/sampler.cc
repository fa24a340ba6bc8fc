#include "samplers/sampler.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <map>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "samplers/options.h"
#include "samplers/solvers.h"

namespace tessera::samplers {
namespace {

// Names are compared in lower case with dashes, without "k-" and "-gpu", and with "dpm++" for "dpmpp".
const std::map<std::string, std::string> kOtherNames = {{"dpm++-2m", "dpm++"},
                                                        {"dpm++-2m-sde", "dpm++-sde"},
                                                        {"dpm++-2s", "dpm++-singlestep"},
                                                        {"dpm++-2s-a", "dpm++-singlestep"},
                                                        {"dpm++-2s-ancestral", "dpm++-singlestep"},
                                                        {"dpm++-sde", "dpm++-singlestep"},
                                                        {"dpm-2", "kdpm2"},
                                                        {"dpm2", "kdpm2"},
                                                        {"dpm-2-a", "kdpm2-a"},
                                                        {"dpm2-a", "kdpm2-a"},
                                                        {"dpm-2-ancestral", "kdpm2-a"},
                                                        {"dpm2-ancestral", "kdpm2-a"},
                                                        {"euler-ancestral", "euler-a"},
                                                        {"plms", "pndm"},
                                                        {"uni-pc", "unipc"},
                                                        {"uni-pc-bh2", "unipc"}};

void replace_first(std::string& text, const std::string& from, const std::string& to) {
  if (const size_t place = text.find(from); place != std::string::npos) text.replace(place, from.size(), to);
}

// Splits the ending that names noise levels from a sampler's name: "dpm++-karras" into "dpm++" and "karras".
// The second is empty if there is none.
std::pair<std::string, std::string> split_levels(const std::string& name) {
  for (const char* levels : {"karras", "exponential", "beta"}) {
    const std::string ending = std::string("-") + levels;
    if (name.ends_with(ending)) return {name.substr(0, name.size() - ending.size()), levels};
  }
  return {name, ""};
}

// Translates a sampler's name in web UIs and ComfyUI ("DPM++ 2M Karras", "dpmpp_2m_karras", "k_euler_a") into
// the one that a sampler has here, following the table in diffusers' documentation ("Schedulers"). The
// spelling of a name that is unknown there is normalised, without any change of its meaning.
std::string translated_name(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) {
    return letter == ' ' || letter == '_' ? '-' : static_cast<char>(std::tolower(letter));
  });
  if (name.starts_with("k-")) name.erase(0, 2);
  replace_first(name, "dpmpp", "dpm++");
  replace_first(name, "dpm++2", "dpm++-2");
  replace_first(name, "-gpu", "");
  const auto [base, levels] = split_levels(name);
  const auto found = kOtherNames.find(base);
  const std::string known = found == kOtherNames.end() ? base : found->second;
  return levels.empty() ? known : known + "-" + levels;
}

struct Row {
  SamplerName name;
  std::unique_ptr<Sampler> (*make)(const JsonConfig& config, const SamplerRun& run);
  Json overrides = Json::object();  // options that the short name implies
  // Options that the short name implies if the file is of another class and does not set them. By default,
  // diffusers' DDIM clips, which suits pixels but not latents, and its PNDM warms up with 12 evaluations of
  // the model, which no released latent model does.
  Json defaults = Json::object();
  // Values of options that the file lacks, if diffusers' default in this class differs from that in most
  // classes.
  Json class_defaults = Json::object();
  bool takes_sigmas = false;  // SamplerRun::has_even_sigmas
};

constexpr int64_t kMaxTrainTimesteps = 1'000'000;

// Lists all samplers. A class may have several short names; the first row has the plain class.
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
      {.name = {"flow-euler", "FlowMatchEulerDiscreteScheduler"},
       .make = make_flow_euler,
       .takes_sigmas = true},
  };
  return table;
}

std::vector<std::string> short_names() {
  std::vector<std::string> names;
  for (const Row& row : rows()) names.push_back(row.name.short_name);
  return names;
}

// Describes a sampler by its name.
struct Choice {
  const Row* row = nullptr;  // null for an unknown name
  bool is_short = false;
  std::string levels = {};  // the ending of a short name: karras, exponential, beta or none
};

std::string option_of_levels(const std::string& levels) {
  return fmt::format("use_{}_sigmas", levels);
}

Choice find_choice(const std::string& name) {
  const auto [base, levels] = split_levels(name);
  for (const Row& row : rows()) {
    if (levels.empty() && name == row.name.class_name) return {&row};
    if (base != row.name.short_name) continue;
    if (levels.empty() || has_option(row.name.class_name, option_of_levels(levels)))
      return {&row, true, levels};
  }
  return {};
}

// Returns the short names, and those that accept an ending for noise levels with it.
std::string known_names() {
  std::vector<std::string> names;
  for (const Row& row : rows()) {
    const bool takes_levels = has_option(row.name.class_name, option_of_levels("karras"));
    names.push_back(row.name.short_name + (takes_levels ? "[-karras]" : ""));
  }
  return fmt::format("{} (-exponential and -beta go where -karras does)", fmt::join(names, ", "));
}

[[noreturn]] void refuse_unknown_name(const std::string& name) {
  std::string meant = translated_name(name);
  if (!find_choice(meant).row) meant = split_levels(meant).first;
  if (!find_choice(meant).row) meant = nearest_word(meant, short_names()).value_or("");
  usage_error(field("scheduler"), "unknown sampler '{}'; {}known are {}", name,
              meant.empty() ? "" : fmt::format("did you mean {}? ", meant), known_names());
}

// Returns whether a model whose file is of this class expects the noise of flow matching.
bool is_made_for_flow(const JsonConfig& config, const std::string& class_name) {
  return class_name.starts_with("FlowMatch") || config.boolean("use_flow_sigmas", false);
}

// Returns whether this sampler gives the model such noise.
bool runs_as_flow(const JsonConfig& config, const std::string& class_name) {
  return class_name.starts_with("FlowMatch") ||
         (has_option(class_name, "use_flow_sigmas") && config.boolean("use_flow_sigmas", false));
}

// If only the number of steps is wrong, the error names the largest smaller number that works with the
// options of `origin`.
std::unique_ptr<Sampler> make_with_steps(const Row& row, const JsonConfig& config, const SamplerRun& run,
                                         const std::string& origin) {
  const int64_t train_timesteps = config.integer("num_train_timesteps", 1000);
  if (train_timesteps < 1 || train_timesteps > kMaxTrainTimesteps)
    config.fail("num_train_timesteps", fmt::format("from 1 to {}", kMaxTrainTimesteps));
  SamplerRun fewer = run;
  // The noise levels of flow matching lie anywhere between those of training.
  if (!row.name.class_name.starts_with("FlowMatch")) fewer.steps = std::min(run.steps, train_timesteps);
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
              fewer.steps, row.name.short_name, origin, run.steps);
}

std::string names_that_take_sigmas() {
  std::vector<std::string> names;
  for (const Row& row : rows()) {
    if (row.takes_sigmas) names.push_back(row.name.short_name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// Handles samplers that get noise levels from a pipeline. `name` is the user's, if the sampler is not the
// file's.
void require_sigmas(const Row& row, const std::optional<std::string>& name, const std::string& where) {
  if (row.takes_sigmas) return;
  const std::string words = fmt::format(
      "the model hands its noise levels to its sampler; {} cannot take them", row.name.class_name);
  const std::string can = names_that_take_sigmas();
  if (name) usage_error(field("scheduler"), "{}, got '{}'; {} can", words, *name, can);
  input_error(where, "{}; give {} {}", words, field("scheduler"), can);
}

// Returns the file's options as used by the chosen sampler, with those of the run replacing them.
Json effective_options(const JsonConfig& config, const Choice& choice, bool keeps_pipeline_defaults,
                       const Json& given) {
  const Row& row = *choice.row;
  const std::string file_class = config.string("_class_name", "");
  Json options = keeps_pipeline_defaults ? config.values() : without_pipeline_defaults(config);
  if (choice.is_short) {
    options.update(row.overrides);
    if (!file_class.empty() && file_class != row.name.class_name) {
      for (const auto& [key, value] : row.defaults.items()) options.emplace(key, value);
    }
  }
  if (!choice.levels.empty()) {
    for (const char* levels : {"karras", "exponential", "beta"})
      options[option_of_levels(levels)] = levels == choice.levels;
    options["use_lu_lambdas"] = false;  // DPM-Solver would prefer these to most others
    const std::string own = option_of_levels(choice.levels);
    if (given.value(own, Json(true)) == Json(false))
      usage_error(field("scheduler_option"), "{}=false contradicts the ending -{} of {}; leave out one", own,
                  choice.levels, field("scheduler"));
  }
  options.update(given);
  for (const auto& [key, value] : row.class_defaults.items()) options.emplace(key, value);
  return options;
}

// Returns whether this error is due to the file: it then also occurs without the options of the run.
bool is_of_file(const Error& error, const Row& row, const JsonConfig& file, const SamplerRun& run) {
  try {
    make_with_steps(row, file, run, "");
  } catch (const Error& without) {
    return without.message() == error.message();
  }
  return false;
}

void warn_of_other_noise(const JsonConfig& config, const JsonConfig& effective,
                         const std::string& class_name) {
  const std::string file_class = config.string("_class_name", "");
  const bool differs = is_made_for_flow(config, file_class) != runs_as_flow(effective, class_name) ||
                       file_class.starts_with("EDM") != class_name.starts_with("EDM");
  if (file_class.empty() || !differs) return;
  log_warning(
      "[{}] the model was made for {}; {} expects another kind of noise and is unlikely to give an image",
      config.where(), file_class, class_name);
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

std::string sampler_class(const std::string& name) {
  const Row* const row = find_choice(name).row;
  return row ? row->name.class_name : name;
}

std::unique_ptr<Sampler> make_sampler(const JsonConfig& config, const std::optional<std::string>& name,
                                      const SamplerRun& run) {
  const std::string file_class = config.string("_class_name", name ? "" : std::optional<std::string>());
  const Choice choice = find_choice(name.value_or(file_class));
  if (!choice.row && name) refuse_unknown_name(*name);
  if (!choice.row)
    input_error(config.where(), "the model's sampler, {}, cannot run yet; give {} {}", file_class,
                field("scheduler"),
                run.has_even_sigmas ? names_that_take_sigmas() : "one of " + known_names());
  if (run.has_even_sigmas) require_sigmas(*choice.row, name, config.where());
  warn_of_unknown_options(config);
  const std::string& class_name = choice.row->name.class_name;
  check_options(class_name, run.options);
  if (run.steps < 1) usage_error(field("num_inference_steps"), "must be 1 or more, got {}", run.steps);
  if (!(run.eta >= 0 && run.eta <= 1)) usage_error(field("eta"), "must be from 0 to 1, got {}", run.eta);
  const bool is_models = name ? choice.is_short && file_class == class_name : run.options.empty();
  const auto with_options = [&](const Json& given) {
    return JsonConfig(effective_options(config, choice, is_models, given), config.where());
  };
  const JsonConfig effective = with_options(run.options);
  warn_of_other_noise(config, effective, class_name);
  try {
    const std::string more = run.options.empty() ? "" : " and " + field("scheduler_option");
    return make_with_steps(*choice.row, effective, run, config.where() + more);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInput || run.options.empty() ||
        is_of_file(error, *choice.row, with_options(Json::object()), run))
      throw;
    blame_options(error, config.where());
  }
}

}  // namespace tessera::samplers
