#include "cli/traced_job.h"

#include "engine/find_model.h"
#include "engine/lone_denoiser.h"
#include "job/outputs.h"
#include "job/recording.h"

namespace tessera::cli {
namespace {

// A text of so many tokens that every tokenizer cuts it.
std::string longest_prompt(const engine::Settings& settings) {
  std::string text = "a";
  for (int64_t i = 0; i < settings.max_sequence_length; ++i) text += " a";
  return text;
}

}  // namespace

job::Job traced_job(job::GenerateArguments arguments) {
  const auto alone = arguments.run.config ? std::nullopt : engine::find_lone_part(arguments.run.model);
  const engine::Model model = alone ? engine::read_lone_denoiser(*alone) : job::read_model(arguments);
  const bool has_prompts = !arguments.request.prompts.empty();
  // A trace does not depend on it, so equal traces are equal files.
  if (!arguments.request.seed) arguments.request.seed = 0;
  if (!has_prompts) arguments.request.prompts = {""};
  job::Job job = job::plan_job(arguments, model, std::nullopt);
  if (!has_prompts) {
    arguments.request.prompts = {longest_prompt(job.settings)};
    job = job::plan_job(arguments, model, std::nullopt);
  }
  job::require_one_part(job.settings);
  if (alone) job.settings.request.output_type = engine::OutputType::kLatent;
  return job;
}

}  // namespace tessera::cli
