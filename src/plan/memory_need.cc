#include "plan/memory_need.h"

#include "engine/groups.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/trace_model.h"

namespace tessera::plan {

// The first rank of a stage of the pipeline needs no less than others of the stage, since larger parts come
// first; only stages hold different blocks.
MemoryNeed memory_need(const engine::Settings& settings, const engine::Model& model,
                       const parallel::Layout& layout) {
  const int64_t world = parallel::Mesh(layout.sizes).world_size();
  const int64_t stages = layout.sizes[parallel::Axis::kPipeline];
  const int64_t replicas = layout.sizes[parallel::Axis::kData];
  const int64_t steps = steps_to_trace(settings, layout);
  MemoryNeed need;
  int64_t weights = 0, denoisers = 0;  // of denoiser and decoder, and of the denoiser alone
  for (int64_t rank = 0, traced = 0; rank < world && traced < stages; ++rank) {
    if (parallel::Ranks(rank, layout).pipeline.rank != traced) continue;
    ++traced;
    const RankTrace trace = trace_rank(settings, model, layout, rank, steps);
    const int64_t ranks = world / stages;
    const int64_t decoding = layout.vae_parallel ? ranks : rank > 0 ? 0 : model.shape.is_video ? 1 : replicas;
    need.denoise += trace.peak_bytes(Phase::kDenoise) * ranks;
    need.decode += trace.peak_bytes(Phase::kDecode) * decoding;
    denoisers += trace.weights_bytes[static_cast<size_t>(Phase::kDenoise)] * ranks;
    weights += trace.weights_bytes[static_cast<size_t>(Phase::kDecode)] * decoding;
  }
  weights += denoisers;
  if (groups_of(settings, layout) * settings.video.loops > 1 && engine::stay_between_turns(weights, at::kCPU))
    need.decode += denoisers;
  return need;
}

}  // namespace tessera::plan
