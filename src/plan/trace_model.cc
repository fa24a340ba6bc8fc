#include "plan/trace_model.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>

#include "comm/recording.h"
#include "core/device.h"
#include "core/file.h"
#include "core/log.h"
#include "engine/batch.h"
#include "engine/component_cache.h"
#include "engine/groups.h"
#include "engine/phases.h"
#include "engine/run_context.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/graph_trace.h"
#include "plan/record_program.h"
#include "plan/recorder.h"

namespace tessera::plan {
namespace {

const at::TensorOptions kMeta = at::TensorOptions().device(at::kMeta);

engine::Settings with_steps(engine::Settings settings, int64_t steps) {
  settings.request.num_inference_steps = settings.steps = steps;
  settings.request.device = at::kMeta;
  return settings;
}

// One rank of a run, on the meta device.
struct MetaRun {
  MetaRun(const engine::Settings& all_settings, const engine::Model& model, const parallel::Layout& layout,
          int64_t rank, int64_t steps, bool constants_are_shapes)
      : device(all_settings.request.device.type()),
        constants(constants_are_shapes),
        settings(with_steps(all_settings, steps)),
        world(comm::recording_world(rank, parallel::Mesh(layout.sizes).world_size())),
        ranks(world, layout),
        components(model, 0),
        run(std::span(&settings, 1), model, components, ranks, {}, engine::Agreeing::kNobody) {}

  const c10::InferenceMode inference_mode;
  const MetaStandsFor device;
  const ConstantsAreShapes constants;
  const engine::Settings settings;
  comm::World world;
  const parallel::Ranks ranks;
  engine::ComponentCache components;
  engine::RunContext run;
};

void encode_quietly(engine::RunContext& run) {
  const SuppressLog suppress_log;  // the prompt that represents the longest one is truncated
  engine::encode(run);
}

at::Tensor encode_and_denoise(engine::RunContext& run, GraphRecorder* graph,
                              const std::vector<models::Conditioning>* prompts) {
  std::shared_ptr<models::Denoiser> denoiser;  // held, so that it is loaded once
  if (prompts == nullptr && encodes_prompts(run.model)) {
    encode_quietly(run);
    engine::encode_references(run);
  } else {
    denoiser = run.load<models::Denoiser>(engine::kDenoiser, engine::Phase::kLoadDenoiser);
    run.prompts = prompts != nullptr ? *prompts : longest_prompts(run, *denoiser);
    run.reference_latents = engine::empty_references(run);
  }
  if (graph != nullptr) {
    add_prompts(*graph, run.prompts);
    add_references(*graph, run.reference_latents);
  }
  engine::DenoisePhase phase(run, std::nullopt);
  while (!phase.is_done()) phase.advance();
  return phase.end();
}

}  // namespace

std::vector<models::Conditioning> longest_prompts(const engine::RunContext& run,
                                                  const models::Denoiser& denoiser) {
  const int64_t length = run.settings.max_sequence_length;
  const auto options = kMeta.dtype(*run.settings.request.dtype);
  std::vector<models::Conditioning> prompts(run.batch->prompts.size());
  for (const int64_t place : run.group().prompts) {
    models::Conditioning& made = prompts[static_cast<size_t>(place)];
    if (run.batch->prompts[static_cast<size_t>(place)].null_of) {
      made[models::kNullTokens] = at::scalar_tensor(length, at::kLong);
      continue;
    }
    made[models::kTokens] = at::empty({length, denoiser.conditioning_width()}, options);
    if (denoiser.pooled_width() > 0) made[models::kPooled] = at::empty({denoiser.pooled_width()}, options);
  }
  return prompts;
}

int64_t steps_to_trace(const engine::Settings& settings, const parallel::Layout& layout) {
  const bool is_pipeline = layout.sizes[parallel::Axis::kPipeline] > 1;
  if (!is_pipeline && !layout.displacement) return 1;
  const int64_t warmup = layout.displacement ? layout.displacement->warmup_steps : layout.warmup_steps;
  return std::min(settings.steps, warmup + 3);
}

int64_t groups_of(const engine::Settings& settings, const parallel::Layout& layout) {
  const engine::Batch batch(std::span(&settings, 1));
  return static_cast<int64_t>(
      engine::make_groups(batch, settings, parallel::Ranks(0, layout), settings.has_given()).size());
}

double turns_of(const engine::Settings& settings, const parallel::Layout& layout) {
  return static_cast<double>(groups_of(settings, layout)) * static_cast<double>(settings.video.loops);
}

bool encodes_prompts(const engine::Model& model) {
  return type_at(model.folder / "tokenizer") != std::filesystem::file_type::not_found;
}

std::optional<std::vector<models::Conditioning>> encode_prompts(const engine::Settings& settings,
                                                                const engine::Model& model) {
  if (!encodes_prompts(model)) return std::nullopt;
  parallel::Layout one_rank;
  one_rank.stage_blocks = {model.shape.blocks};
  MetaRun meta(settings, model, one_rank, 0, 1, /*constants_are_shapes=*/true);
  try {
    engine::prepare(meta.run);
    encode_quietly(meta.run);
  } catch (const engine::SettledEnd& end) {
    std::rethrow_exception(end.cause);
  }
  return std::move(meta.run.prompts);
}

RankTrace trace_rank(const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank, int64_t steps,
                     const TraceOptions& options) {
  RankTrace trace{.rank = rank, .events = {}};
  // A graph includes the contents of constants.
  MetaRun meta(settings, model, layout, rank, steps, !options.keeps_graph && !options.names_roles);
  engine::RunContext& run = meta.run;
  try {
    engine::prepare(run);
    std::optional<GraphRecorder> graph;
    if (options.names_roles || options.keeps_graph) graph.emplace(/*is_program=*/false);
    Recorder recorder(meta.world, trace);
    recorder.follow(run.observer());
    std::optional<GraphTracer> tracer;
    if (graph) tracer.emplace(recorder, *graph, denoiser_folder(model)).follow(run.observer());
    engine::decode(run, encode_and_denoise(run, graph ? &*graph : nullptr, options.prompts));
    run.next_turn();
    engine::output_latents(run);
    if (options.blocks != nullptr) *options.blocks = recorder.blocks();
    if (tracer) tracer->finish(trace, run.sampler->steps(), options.keeps_graph);
  } catch (const engine::SettledEnd& end) {
    std::rethrow_exception(end.cause);
  }
  return trace;
}

}  // namespace tessera::plan
