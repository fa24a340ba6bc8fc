#include "job/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/log.h"
#include "engine/references.h"
#include "job/memory_check.h"
#include "job/outputs.h"
#include "job/progress.h"
#include "job/report.h"
#include "parallel/ranks.h"

namespace tessera::job {
namespace {

// Returns options for the meta device, on which weights are not read.
models::LoadOptions on_no_device(const Job& job) {
  models::LoadOptions options;
  options.placement.dtype = *job.settings.request.dtype;
  options.placement.device = at::kMeta;
  options.variant = job.arguments.run.variant.value_or("");
  options.single_file = job.model.single_file;
  return options;
}

template <typename Load>
uint64_t bytes_of(const Load& load, const Job& job, const models::LoadOptions& options) {
  models::LoadStatistics statistics;
  load(job.model.folder, options, statistics);
  return statistics.bytes_held;
}

uint64_t most_denoiser_bytes(const Job& job) {
  std::set<parallel::DenoiserPlace> counted;
  uint64_t most = 0;
  for (int64_t rank = 0; rank < job.ranks(); ++rank) {
    const parallel::Ranks ranks(rank, job.layout);
    if (!counted.insert(parallel::denoiser_place(ranks)).second) continue;
    models::LoadOptions options = on_no_device(job);
    options.placement.groups = {ranks.tensor_inner, ranks.tensor_outer};
    if (ranks.pipeline.size > 1) options.blocks = job.layout.stage(ranks.pipeline.rank);
    most = std::max(most, bytes_of(job.model.family->load_denoiser, job, options));
  }
  return most;
}

}  // namespace

void print_plan(const Job& job, const FieldSpelling& spelling) {
  OrderedJson weights = OrderedJson::object();
  {
    const ScopedLogSink silence({});  // the run repeats the warnings
    const models::Family& family = *job.model.family;
    const models::LoadOptions options = on_no_device(job);
    uint64_t text_encoders = 0;
    for (const models::TextEncoderPart& each : job.model.text_encoders())
      text_encoders += bytes_of(each.load, job, options);
    weights["text_encoder"] = text_encoders;
    if (job.settings.has_given()) weights["video_encoder"] = bytes_of(family.load_encoder, job, options);
    if (!job.settings.references.empty()) weights["encoder"] = bytes_of(family.load_encoder, job, options);
    weights["denoiser"] = most_denoiser_bytes(job);
    weights["decoder"] = bytes_of(family.load_decoder, job, options);
  }
  const plan::MemoryNeed need = need_of(job);
  const OrderedJson plan = {{"settings", settings_json(job)},
                            {"outputs", written_paths(job.outputs, job.settings)},
                            {"world_size", job.ranks()},
                            {"weights_bytes", weights},
                            {"memory_bytes", {{"denoise", need.denoise}, {"decode", need.decode}}}};
  Progress progress(job.arguments.run.quiet, spelling);  // prints warnings
  if (!job.arguments.run.quiet) progress.line(headline(job));
  for (const std::string& warning : job.settings.warnings) log_warning("{}", warning);
  if (job.settings.has_given()) engine::References({&job.settings, 1}, job.model.scale);
  engine::require_pictures(job.settings.references);
  fmt::print("{}\n", plan.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace tessera::job
