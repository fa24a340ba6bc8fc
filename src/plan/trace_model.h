// Traces a run from shapes alone: the engine's own code on meta tensors, as one rank without the others. No
// weight is read.
#pragma once

#include "engine/model.h"
#include "engine/request.h"
#include "engine/run_context.h"
#include "parallel/layout.h"
#include "plan/trace.h"

namespace tessera::plan {

// Returns how many steps show all that a run does: one; where later steps use what earlier ones have left,
// those that compute everything anew and three more: the first that uses what they leave, one that is like
// all after it, and the last, which leaves nothing.
int64_t steps_to_trace(const engine::Settings& settings, const parallel::Layout& layout);

// Returns how many groups of pictures a run generates one after another (engine/groups.h).
int64_t groups_of(const engine::Settings& settings, const parallel::Layout& layout);
// How often a run denoises and decodes: for each of these, and for each part of a long video.
double turns_of(const engine::Settings& settings, const parallel::Layout& layout);

// Whether prompts are cut into tokens and encoded; otherwise the denoiser gets prompts of the greatest
// length.
bool encodes_prompts(const engine::Model& model);

struct TraceOptions {
  bool keeps_graph = false;  // of the denoiser (plan/graph_trace.h)
  bool names_roles = true;   // attention has its role from the values that it computes
  bool encodes = true;       // the prompts, where a tokenizer is there
  // Gets the block of the denoiser in which each event happens, or -1; unlike OperationEvent::block, also of
  // collectives and waits.
  std::vector<int64_t>* blocks = nullptr;
};

// Traces `steps` steps of a run of `settings` on `rank`, with the encoding of all prompts before and the
// decoding after them, for the first group of its pictures (engine/groups.h). Throws as loading does.
RankTrace trace_rank(const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank, int64_t steps,
                     const TraceOptions& options = {});

// What the text encoders would make of the longest prompts, on the meta device, for a model whose prompts are
// not encoded. By prompt of the run's batch.
std::vector<models::Conditioning> longest_prompts(const engine::RunContext& run,
                                                  const models::Denoiser& denoiser);

}  // namespace tessera::plan
