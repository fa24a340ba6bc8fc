#include "tessera/trace.h"

#include <utility>

#include "core/error.h"
#include "job/traced_job.h"
#include "plan/trace_model.h"

namespace tessera {

std::string trace(const EngineOptions& options, const Request& request, std::optional<int64_t> rank) {
  job::GenerateArguments arguments{
      .request = request, .parallel = options.parallel, .run = {}, .messages = {}};
  const auto set = [](std::optional<std::string>& option, const std::string& text) {
    if (!text.empty()) option = text;
  };
  set(arguments.run.model, options.model);
  set(arguments.run.config, options.config);
  set(arguments.run.variant, options.variant);
  const job::Job job = job::traced_job(std::move(arguments));
  if (rank && (*rank < 0 || *rank >= job.ranks()))
    usage_error("rank", "must be from 0 to {}, got {}", job.ranks() - 1, *rank);
  plan::Trace trace = job::trace_without_ranks(job);
  const int64_t steps = plan::steps_to_trace(job.settings, job.layout);
  for (int64_t each = rank.value_or(0); each < (rank ? *rank + 1 : job.ranks()); ++each)
    trace.ranks.push_back(plan::trace_rank(job.settings, job.model, job.layout, each, steps));
  return plan::write_trace(trace);
}

}  // namespace tessera
