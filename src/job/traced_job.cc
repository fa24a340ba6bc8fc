#include "job/traced_job.h"

#include "engine/find_model.h"
#include "engine/lone_denoiser.h"
#include "job/outputs.h"
#include "job/recording.h"
#include "job/report.h"
#include "plan/trace_model.h"

namespace tessera::job {
namespace {

// Returns a text with so many tokens that every tokenizer truncates it.
std::string longest_prompt(const engine::Settings& settings) {
  std::string text = "a";
  for (int64_t i = 0; i < settings.max_sequence_length; ++i) text += " a";
  return text;
}

// Returns how often the sampler runs the denoiser in this many steps: Heun's method does so twice in all
// steps but the last.
int64_t evaluations(const Job& job, int64_t steps) {
  engine::Settings settings = job.settings;
  settings.request.num_inference_steps = settings.steps = steps;
  return engine::make_sampler(settings, job.model)->steps();
}

}  // namespace

Job traced_job(GenerateArguments arguments) {
  require_one_part(arguments.request.video);
  const auto alone = arguments.run.config ? std::nullopt : engine::find_lone_part(arguments.run.model);
  const engine::Model model = alone ? engine::read_lone_denoiser(*alone) : read_model(arguments);
  const bool has_prompts = !arguments.request.prompts.empty();
  // A trace does not depend on the seed; a fixed one makes equal traces equal files.
  if (!arguments.request.seed) arguments.request.seed = 0;
  if (!has_prompts) arguments.request.prompts = {""};
  Job job = plan_job(arguments, model, std::nullopt);
  if (!has_prompts) {
    arguments.request.prompts = {longest_prompt(job.settings)};
    job = plan_job(arguments, model, std::nullopt);
  }
  require_one_part(job.settings);
  if (alone) job.settings.request.output_type = engine::OutputType::kLatent;
  return job;
}

plan::Trace trace_without_ranks(const Job& job) {
  return {.model = job.model.family->class_name,
          .settings = settings_json(job),
          .world_size = job.ranks(),
          .steps = evaluations(job, job.settings.steps),
          .traced_steps = evaluations(job, plan::steps_to_trace(job.settings, job.layout)),
          .ranks = {}};
}

}  // namespace tessera::job
