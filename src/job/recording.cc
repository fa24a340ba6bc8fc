#include "job/recording.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"
#include "job/outputs.h"
#include "job/report.h"
#include "plan/trace_model.h"

namespace tessera::job {

namespace {

void refuse(bool is_given, const char* name) {
  if (is_given)
    usage_error(field(name),
                "a trace shows one part of a video without references; leave it out, also of the prompts");
}

bool is_any(const auto& by_prompt) {
  return std::any_of(by_prompt.begin(), by_prompt.end(), [](const auto& each) { return !each.empty(); });
}

}  // namespace

void require_one_part(const VideoRequest& request) {
  refuse(request.loop.value_or(1) > 1, "loop");
  refuse(is_any(request.reference_paths), "reference_path");
  refuse(is_any(request.mask_strategies), "mask_strategy");
}

void require_one_part(const engine::Settings& settings) {
  refuse(is_any(settings.video.references), "reference_path");
  refuse(is_any(settings.video.given), "mask_strategy");
}

void require_recordable(const Job& job) {
  if (!job.arguments.run.record) return;
  require_one_part(job.settings);
  if (const int64_t groups = plan::groups_of(job.settings, job.layout); groups > 1)
    usage_error(field("record"),
                "records the pictures of a single group, and these make {} groups; ask for fewer "
                "pictures",
                groups);
  if (!job.settings.request.device.is_cpu())
    usage_error(field("record"), "times only operations on CPUs; use {} cpu, or {}", field("device"),
                field("timeline"));
}

Recording::Recording(const Job& job, comm::World& world)
    : job_(job), trace_{.rank = world.rank(), .events = {}} {
  recorder_.emplace(world, trace_, /*is_timed=*/true);
  recorder_->begin_loading(plan::Phase::kEncode);
}

void Recording::write(const comm::Group& world) {
  recorder_.reset();
  const int64_t steps = engine::make_sampler(job_.settings, job_.model)->steps();
  plan::Trace trace{.model = job_.model.family->class_name,
                    .settings = settings_json(job_),
                    .world_size = world.size,
                    .steps = steps,
                    .traced_steps = steps,
                    .ranks = {trace_}};
  trace.settings["threads"] = at::get_num_threads();  // the actual number, whoever chose it
  const std::vector<std::string> texts = comm::gather_bytes(plan::write_trace(trace), 0, world);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    plan::Trace other = plan::read_trace(texts[rank], fmt::format("the recording of rank {}", rank));
    std::move(other.ranks.begin(), other.ranks.end(), std::back_inserter(trace.ranks));
  }
  if (world.rank == 0) write_text(*job_.arguments.run.record, plan::write_trace(trace));
}

}  // namespace tessera::job
