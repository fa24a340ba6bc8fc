#include "plan/memory_need.h"

#include "engine/groups.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/trace_model.h"

namespace tessera::plan {

// If ranks have equal shares, the first one of a stage represents the others: it needs no less than they do,
// since larger parts come first, and only stages hold different blocks. Otherwise each rank represents
// itself.
MemoryNeed memory_need(const engine::Settings& settings, const engine::Model& model,
                       const parallel::Layout& layout) {
  const int64_t world = parallel::Mesh(layout.sizes).world_size();
  const bool are_equal = layout.rank_shares.empty();
  const int64_t alike = are_equal ? world / layout.sizes[parallel::Axis::kPipeline] : 1;
  const int64_t replicas = are_equal ? layout.sizes[parallel::Axis::kData] : 1;
  const int64_t steps = steps_to_trace(settings, layout);
  MemoryNeed need;
  int64_t weights = 0, denoisers = 0;  // for denoiser and decoder, and for the denoiser alone
  for (int64_t rank = 0, stage = 0; rank < world; ++rank) {
    const parallel::Ranks ranks(rank, layout);
    if (are_equal && ranks.pipeline.rank != stage) continue;
    ++stage;
    const RankTrace trace = trace_rank(settings, model, layout, rank, steps, {.names_roles = false});
    const bool is_first = (model.shape.is_video ? ranks.world : ranks.replica).rank == 0;
    const int64_t decoding = layout.vae_parallel    ? alike
                             : !is_first            ? 0
                             : model.shape.is_video ? 1
                                                    : replicas;
    need.denoise += trace.peak_bytes(Phase::kDenoise) * alike;
    need.decode += trace.peak_bytes(Phase::kDecode) * decoding;
    denoisers += trace.weights_bytes[static_cast<size_t>(Phase::kDenoise)] * alike;
    weights += trace.weights_bytes[static_cast<size_t>(Phase::kDecode)] * decoding;
  }
  weights += denoisers;
  if (groups_of(settings, layout) * settings.video.loops > 1 && engine::stay_between_turns(weights, at::kCPU))
    need.decode += denoisers;
  return need;
}

}  // namespace tessera::plan
