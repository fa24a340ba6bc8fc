// Traces a run from shapes alone: the engine's own code on meta tensors, as one rank without the others.
// Weights are not read.
#pragma once

#include <optional>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "engine/run_context.h"
#include "parallel/layout.h"
#include "plan/trace.h"

namespace tessera::plan {

// Returns how many steps show everything that a run does: one; if later steps use what earlier ones have
// left, those that compute everything anew and three more: the first that uses what they left, a typical one,
// and the last, which leaves nothing.
int64_t steps_to_trace(const engine::Settings& settings, const parallel::Layout& layout);

// Returns how many groups of pictures a run generates one after another (engine/groups.h).
int64_t groups_of(const engine::Settings& settings, const parallel::Layout& layout);
// How often a run denoises and decodes: once for each group, in each part of a long video.
double turns_of(const engine::Settings& settings, const parallel::Layout& layout);

// Whether prompts are tokenized and encoded; otherwise the denoiser gets prompts of the maximum length.
bool encodes_prompts(const engine::Model& model);

struct TraceOptions {
  bool keeps_graph = false;  // that of the denoiser (plan/graph_trace.h)
  bool names_roles = true;   // whether the role of attention is determined from the values that it computes
  // The results of encode_prompts(), with which the prompts are not encoded again.
  const std::vector<models::Conditioning>* prompts = nullptr;
  // Receives the block of the denoiser in which each event happens, or -1; unlike OperationEvent::block, this
  // includes collectives and waits.
  std::vector<int64_t>* blocks = nullptr;
};

// Returns what the text encoders make of the prompts of a run, on the meta device and as long as these
// prompts are; nothing if encodes_prompts() is false. Throws as loading does.
std::optional<std::vector<models::Conditioning>> encode_prompts(const engine::Settings& settings,
                                                                const engine::Model& model);

// Traces `steps` steps of a run of `settings` on `rank`, including the encoding of all prompts before them
// and the decoding after them, for the first group of its pictures (engine/groups.h). Throws as loading does.
RankTrace trace_rank(const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank, int64_t steps,
                     const TraceOptions& options = {});

// The output of the text encoders for the longest prompts, on the meta device, for a model whose prompts are
// not encoded. By prompt of the run's batch.
std::vector<models::Conditioning> longest_prompts(const engine::RunContext& run,
                                                  const models::Denoiser& denoiser);

}  // namespace tessera::plan
