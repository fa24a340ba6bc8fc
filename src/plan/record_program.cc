#include "plan/record_program.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <fmt/ranges.h>

#include <array>
#include <exception>
#include <map>
#include <tuple>
#include <utility>

#include "comm/recording.h"
#include "core/device.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "engine/local_latents.h"
#include "engine/phases.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/trace_model.h"

namespace tessera::plan {
namespace {

using parallel::Axis;

// A run on meta tensors, by one rank without the others.
class TracedRun {
 public:
  TracedRun(const engine::Settings& settings, const engine::Model& model, const parallel::Layout& layout,
            int64_t rank)
      : world_(comm::recording_world(rank, parallel::Mesh(layout.sizes).world_size())),
        settings_(settings),
        ranks_(world_, layout),
        components_(model, 0) {
    settings_.request.device = at::kMeta;
    context.emplace(std::span(&settings_, 1), model, components_, ranks_, engine::Observer(),
                    engine::Agreeing::kNobody);
    engine::prepare(*context);
  }

 private:
  const c10::InferenceMode inference_mode_;
  // A device that stands for a GPU takes the plain path, which has a form for each operation.
  const MetaStandsFor device_{at::kCUDA};
  comm::World world_;
  engine::Settings settings_;
  parallel::Ranks ranks_;
  engine::ComponentCache components_;

 public:
  std::optional<engine::RunContext> context;
};

at::Tensor on_meta(at::IntArrayRef sizes) {
  return at::empty(sizes, at::dtype(at::kFloat).device(at::kMeta));
}

// The part of its samples' latents that this rank holds in a patch.
std::vector<weights::Slice> local_lines(const engine::DenoiserStage& stage, int64_t patch) {
  std::vector<weights::Slice> slices;
  for (const engine::LatentAxis& axis : stage.latent_axes()) {
    const std::vector<Range> lines =
        axis.of(stage.cut().lines_of(axis.axis, {patch, 1}, stage.sequence_rank()));
    TESSERA_CHECK(lines.size() == 1, "a rank holds {} runs of lines", lines.size());
    if (lines[0].length < axis.all) slices.push_back({axis.dim, lines[0].begin, lines[0].length});
  }
  return slices;
}

std::vector<int64_t> sliced(std::vector<int64_t> sizes, const std::vector<weights::Slice>& slices) {
  for (const weights::Slice& each : slices) sizes[static_cast<size_t>(each.dim)] = each.length;
  return sizes;
}

}  // namespace

std::string denoiser_folder(const engine::Model& model) {
  for (const char* name : {"transformer", "unet"}) {
    if (model.has_part(name)) return name;
  }
  TESSERA_CHECK(false, "{} has no denoiser", model.family->title);
}

void add_prompts(GraphRecorder& recorder, const std::vector<models::Conditioning>& conditionings) {
  for (size_t i = 0; i < conditionings.size(); ++i) {
    for (const auto& [name, tensor] : conditionings[i]) {
      if (!tensor.is_meta()) continue;  // a number of tokens
      const std::string shown = name == models::kTokens ? "prompt" : name;
      recorder.add_input(fmt::format("{}.{}", shown, i), tensor);
    }
  }
}

void add_references(GraphRecorder& recorder, const std::vector<at::Tensor>& latents) {
  for (size_t i = 0; i < latents.size(); ++i) recorder.add_input(fmt::format("reference.{}", i), latents[i]);
}

namespace {

// Records a rank's stage evaluating a step.
class StepRecording {
 public:
  StepRecording(GraphRecorder& recorder, engine::DenoiserStage& stage, const engine::RunContext& run)
      : recorder_(recorder),
        stage_(stage),
        stages_(run.ranks.pipeline),
        whole_(run.latent_sizes()),
        patches_(stage.cut().patches) {
    whole_.front() = stage.samples();
  }

  // All patches at once, or one after another.
  void run(int64_t step, int64_t steps, bool is_together) {
    const models::Timestep timestep{.value = 0, .on_device = on_meta({1})};
    recorder_.add_step_input("timestep", timestep.on_device);
    const engine::Step of_step{.index = step, .count = steps, .timestep = timestep};
    parallel::Tensors latents;
    for (int64_t patch = 0; patch < patches_ && is_first(); ++patch) {
      const std::vector<weights::Slice> lines = local_lines(stage_, patch);
      latents.push_back(on_meta(sliced(whole_, lines)));
      recorder_.add_step_input("latents" + suffix(patch), latents.back(), whole_, lines);
    }
    if (is_together) {
      run_patches(of_step, {0, patches_}, latents, "");
    } else {
      for (int64_t patch = 0; patch < patches_; ++patch)
        run_patches(of_step, {patch, 1}, latents, suffix(patch));
    }
  }

 private:
  bool is_first() const { return stages_.rank == 0; }
  bool is_last() const { return stages_.rank + 1 == stages_.size; }
  std::string suffix(int64_t patch) const { return patches_ == 1 ? "" : fmt::format(".{}", patch); }

  // `latents` are those of each patch of the picture, on the first stage. Hidden states are named
  // `hidden{of_run}.N`.
  void run_patches(const engine::Step& step, Range patches, const parallel::Tensors& latents,
                   const std::string& of_run) {
    const auto hidden_name = [&](size_t i) { return fmt::format("hidden{}.{}", of_run, i); };
    parallel::Tensors given;
    if (is_first()) {
      const at::TensorList own = at::TensorList(latents).slice(static_cast<size_t>(patches.begin),
                                                               static_cast<size_t>(patches.length));
      given = {own.size() == 1 ? own.front() : at::concat(own, patch_dim())};
    } else {
      given = stage_.empty_hidden(patches);
      for (size_t i = 0; i < given.size(); ++i) recorder_.add_step_input(hidden_name(i), given[i]);
    }
    const parallel::Tensors out = stage_.run(step, patches, std::move(given));
    for (size_t i = 0; i < out.size() && !is_last(); ++i) recorder_.add_result(hidden_name(i), out[i]);
    if (is_last()) add_predictions(out.front(), patches);
  }

  void add_predictions(const at::Tensor& prediction, Range patches) {
    std::vector<int64_t> whole = whole_;
    whole[1] = prediction.size(1);  // it may have more channels
    int64_t line = 0;
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      const std::vector<weights::Slice> lines = local_lines(stage_, patch);
      const int64_t length = sliced(whole, lines)[static_cast<size_t>(patch_dim())];
      recorder_.add_result("prediction" + suffix(patch), prediction.narrow(patch_dim(), line, length), whole,
                           lines);
      line += length;
    }
  }

  int64_t patch_dim() const {
    for (const engine::LatentAxis& axis : stage_.latent_axes()) {
      if (axis.axis == stage_.cut().patch_axis) return axis.dim;
    }
    TESSERA_CHECK(false, "images have no frames to cut");
  }

  GraphRecorder& recorder_;
  engine::DenoiserStage& stage_;
  const comm::Group& stages_;
  std::vector<int64_t> whole_;  // of the latents of the samples
  int64_t patches_;
};

}  // namespace

DenoiserGraphs record_denoiser(const engine::Settings& settings, const engine::Model& model,
                               const parallel::Layout& layout, int64_t rank) {
  TracedRun traced(settings, model, layout, rank);
  engine::RunContext& run = *traced.context;
  if (encodes_prompts(model)) {
    const SuppressLog suppress_log;
    engine::encode(run);
  }
  const std::map<std::string, at::Tensor> conditions = run.conditions();

  GraphRecorder recorder;
  recorder.begin_part(denoiser_folder(model));
  const auto denoiser = run.load<models::Denoiser>(engine::kDenoiser, engine::Phase::kLoadDenoiser);
  if (run.prompts.empty()) run.prompts = longest_prompts(run, *denoiser);
  const std::vector<models::Conditioning> prompts = run.group().of(run.prompts);
  add_prompts(recorder, prompts);
  run.reference_latents = engine::empty_references(run);
  add_references(recorder, run.reference_latents);
  for (const auto& [name, numbers] : conditions) recorder.add_input(name, numbers);
  const std::vector<int64_t> samples = run.group().guidance.front().samples(run.ranks);
  engine::DenoiserStage stage(*denoiser, model.shape, prompts, samples, run.settings.latents, run.ranks,
                              conditions, run.reference_latents);
  StepRecording recording(recorder, stage, run);
  DenoiserGraphs graphs;
  if (layout.is_exact()) {
    recording.run(/*step=*/0, /*steps=*/1, /*is_together=*/true);
    graphs.steady = recorder.take();
  } else {
    // The first step after the warm-up; it must not be the last, which sends nothing for the next.
    const int64_t warmup = layout.displacement ? layout.displacement->warmup_steps : layout.warmup_steps;
    const int64_t steady = std::max<int64_t>(warmup, 1);
    recording.run(/*step=*/0, steady + 2, /*is_together=*/true);
    recorder.begin_later_step();
    recording.run(steady, steady + 2, /*is_together=*/false);
    stage.drain();
    std::tie(graphs.first_step.emplace(), graphs.steady) = recorder.take_steps();
  }
  for (Graph* const graph : {&graphs.steady, graphs.first_step ? &*graphs.first_step : nullptr}) {
    if (graph == nullptr) continue;
    graph->prompt_of_sample = samples;
    graph->images = run.ranks.data.part(run.group().count());
    for (const auto& [name, numbers] : conditions) {
      if (numbers.numel() == 1) graph->numbers[name] = numbers.item<double>();
    }
  }
  return graphs;
}

namespace {

Graph record_named(const std::string& part, const engine::Settings& settings, const engine::Model& model,
                   const parallel::Layout& layout, int64_t rank) {
  const bool has_decoder = model.has_part("vae");
  std::vector<std::string> known = {engine::kDenoiser};
  if (has_decoder) known.emplace_back(engine::kDecoder);
  if (part == engine::kDenoiser) return record_denoiser(settings, model, layout, rank).steady;
  if (part == kFirstStep) {
    if (layout.is_exact())
      usage_error(field("part"), "'{}' needs ranks that use what an earlier step left; give {} or {}", part,
                  field("pipefusion_parallel_degree"), field("displaced_patch_degree"));
    return *record_denoiser(settings, model, layout, rank).first_step;
  }
  if (part == engine::kDecoder && has_decoder) return record_decoder(settings, model, layout, rank);
  const std::vector<models::TextEncoderPart> encoders = model.text_encoders();
  for (size_t i = 0; i < encoders.size(); ++i) {
    if (encoders[i].name == part) return record_text_encoder(settings, model, layout, rank, i);
    known.push_back(encoders[i].name);
  }
  usage_error(field("part"), "the model has no '{}'; its parts are {}", part, fmt::join(known, ", "));
}

Graph record_settled(const std::string& part, const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank) {
  try {
    return record_named(part, settings, model, layout, rank);
  } catch (const engine::SettledEnd& end) {
    std::rethrow_exception(end.cause);
  }
}

// Refuses parts that have no program.
void require_program(const std::string& part, const engine::Settings& settings) {
  if (part == engine::kDecoder && settings.request.vae_tiling)
    usage_error(field("vae_tiling"), "decodes tile by tile, for which there is no program; leave it out");
}

}  // namespace

Graph record_program(const std::string& part, const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank) {
  require_program(part, settings);
  return record_settled(part, settings, model, layout, rank);
}

namespace {

// If several methods divide the same thing, they do so in this order: samples into branches of guidance, each
// of which has the pictures in order; sequences into the parts of Ring, then of gathered keys and values,
// then of Ulysses; heads into those of tensor parallelism (by outputs, then by inputs), then of Ulysses.
constexpr std::array kDividingOrder = {Axis::kCfg,         Axis::kData,        Axis::kPipeline,
                                       Axis::kDisplaced,   Axis::kRing,        Axis::kGather,
                                       Axis::kTensorInner, Axis::kTensorOuter, Axis::kUlysses};
static_assert(kDividingOrder.size() == parallel::kAllAxes.size());

// The layout of a single method of several, and of stages.
parallel::Layout with_axis_alone(parallel::Layout layout, Axis axis, int64_t size,
                                 const std::vector<int64_t>& stage_blocks) {
  layout.sizes = parallel::PerAxis(1);
  layout.sizes[axis] = size;
  if (stage_blocks.empty()) return layout;
  layout.sizes[Axis::kPipeline] = std::ssize(stage_blocks);
  layout.stage_blocks = stage_blocks;
  return layout;
}

// The axes of the mesh that each axis of the layout corresponds to: one of its own, or those of a requested
// mesh.
std::map<Axis, std::vector<MeshAxis>> mesh_axes(const parallel::Layout& layout,
                                                const std::optional<std::array<int64_t, 2>>& mesh) {
  std::map<Axis, std::vector<MeshAxis>> axes;
  std::vector<std::string> shown;
  for (const Axis axis : parallel::kAllAxes) {
    const MeshAxis own{std::string(parallel::axis_name(axis)), layout.sizes[axis]};
    if (own.size == 1) continue;
    axes[axis] = {own};
    shown.insert(shown.begin(), fmt::format("{} {}", own.name, own.size));
  }
  if (!mesh) return axes;
  const MeshAxis x{"x", mesh->front()}, y{"y", mesh->back()};
  // The faster axis of the layout comes first.
  if (axes.size() == 1 && axes.begin()->second.front().size == x.size * y.size) {
    axes.begin()->second = {x, y};
  } else if (axes.size() == 2 && axes.begin()->second.front().size == y.size &&
             axes.rbegin()->second.front().size == x.size) {
    axes.begin()->second = {y};
    axes.rbegin()->second = {x};
  } else {
    const int64_t ranks = parallel::Mesh(layout.sizes).world_size();
    const std::string advice =
        axes.empty() ? fmt::format("give the degree of a method too, as {}", field("tensor_parallel_degree"))
        : axes.size() == 1 ? fmt::format("give two sizes whose product is {}", ranks)
        : axes.size() == 2
            ? fmt::format("give {}x{}", axes.rbegin()->second.front().size, axes.begin()->second.front().size)
            : "it is of one method or two; leave it out";
    usage_error(field("mesh"), "{}x{} does not fit {}{}; {}", x.size, y.size, counted(ranks, "rank"),
                shown.empty() ? "" : fmt::format(" ({})", fmt::join(shown, ", ")), advice);
  }
  return axes;
}

}  // namespace

std::vector<ShardedGraph> record_sharded_programs(const std::string& part, const engine::Settings& settings,
                                                  const engine::Model& model, const parallel::Layout& layout,
                                                  const ShardingOptions& options) {
  require_program(part, settings);
  if (layout.sizes[Axis::kPipeline] > 1 || layout.displacement)
    usage_error(field("sharding"), "cannot express PipeFusion and displaced patches; leave it out");
  if (!layout.rank_shares.empty())
    usage_error(field("rank_shares"), "cannot be expressed by shardings, whose parts are equal; leave out {}",
                field("sharding"));
  if (options.sequence_parallel &&
      (layout.sizes[Axis::kTensorInner] == 1 || layout.sizes[Axis::kTensorOuter] > 1))
    usage_error(
        field("sequence_parallel"),
        "divides what is between the layers of tensor parallelism by one axis; give {} of at least 2, "
        "without {}",
        field("tensor_parallel_degree"), field("split_scheme"));
  const std::map<Axis, std::vector<MeshAxis>> axes = mesh_axes(layout, options.mesh);
  std::vector<MeshAxis> mesh;
  for (auto each = axes.rbegin(); each != axes.rend(); ++each)
    mesh.insert(mesh.end(), each->second.begin(), each->second.end());
  parallel::Layout divided = layout;
  const int64_t frames = model.shape.token_grid(settings.latents).frames,
                sequence = parallel::Mesh(layout.sizes).size(parallel::kSequenceAxes);
  // Tokens are ordered by frame, and a sharding has contiguous parts.
  if (sequence > 1 && frames % sequence == 0) divided.rank_axis = parallel::GridAxis::kFrames;
  std::vector<ShardedGraph> programs;
  const auto stages = std::max<int64_t>(std::ssize(options.stage_blocks), 1);
  for (int64_t stage = 0; stage < stages; ++stage) {
    const auto record = [&](Axis axis, int64_t size) {
      const parallel::Layout alone = with_axis_alone(divided, axis, size, options.stage_blocks);
      parallel::PerAxis first(0);
      first[Axis::kPipeline] = stage;
      return record_settled(part, settings, model, alone, parallel::Mesh(alone.sizes).rank_at(first));
    };
    std::vector<MethodGraph> methods;
    for (const Axis axis : kDividingOrder) {
      if (!axes.contains(axis)) continue;
      const bool divides_samples = part == engine::kDenoiser && (axis == Axis::kCfg || axis == Axis::kData);
      methods.push_back({.axes = axes.at(axis),
                         .divides_samples = divides_samples,
                         .graph = record(axis, layout.sizes[axis]),
                         .divides_sums = options.sequence_parallel && axis == Axis::kTensorInner});
    }
    programs.push_back(shard_graph(record(Axis::kData, 1), methods, mesh));
  }
  return programs;
}

Graph record_text_encoder(const engine::Settings& settings, const engine::Model& model,
                          const parallel::Layout& layout, int64_t rank, size_t encoder) {
  TracedRun traced(settings, model, layout, rank);
  engine::RunContext& run = *traced.context;
  const std::string name = model.text_encoders().at(encoder).name;
  GraphRecorder recorder;
  recorder.begin_part(name);
  const auto loaded = run.load<models::TextEncoder>(name, engine::Phase::kLoadTextEncoder);
  const models::Prompt prompt = run.settings.prompt(0).of_encoder(encoder);
  const models::Conditioning made = loaded->encode({prompt}, run.settings.max_sequence_length).front();
  for (const auto& [of_tensor, tensor] : made)
    recorder.add_result(of_tensor == models::kTokens ? "states" : of_tensor, tensor);
  return recorder.take();
}

Graph record_decoder(const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank) {
  TracedRun traced(settings, model, layout, rank);
  engine::RunContext& run = *traced.context;
  GraphRecorder recorder;
  recorder.begin_part("vae");
  const auto decoder = run.load<models::Decoder>(engine::kDecoder, engine::Phase::kLoadDecoder);
  const models::LatentShape& shape = run.settings.latents;
  const models::Decoder::Clip clip = decoder->clip();
  const int64_t count = std::min(clip.latents, shape.latent_frames);
  const comm::Group group = run.decodes_together() ? run.decoding_ranks() : comm::Group();
  nn::Tokens tokens(parallel::Cut({.rows = shape.latent_height, .columns = shape.latent_width},
                                  parallel::GridAxis::kRows, 1, group.size, 1, group.shares),
                    {.ring = group, .all = group});
  const Range rows = tokens.cut().part(0, group.rank);
  std::vector<int64_t> whole = {count, model.shape.latent_channels, shape.latent_height, shape.latent_width};
  const std::vector<weights::Slice> own = {{2, rows.begin, rows.length}};
  const at::Tensor latents = on_meta(sliced(whole, own));
  recorder.add_input("latents", latents, whole, own);
  const int64_t frames = std::min(clip.first_frames.value_or(clip.frames), run.settings.frames);
  const at::Tensor made = decoder->decode_clip(latents, frames, tokens, decoder->begin_video().get());
  const Range pixels = times(rows, shape.scale_factor);
  whole = made.sizes().vec();
  whole[2] = shape.latent_height * shape.scale_factor;
  recorder.add_result("frames", made, whole, {{2, pixels.begin, pixels.length}});
  return recorder.take();
}

}  // namespace tessera::plan
