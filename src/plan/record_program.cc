#include "plan/record_program.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <fmt/ranges.h>

#include <array>
#include <exception>
#include <utility>

#include "comm/recording.h"
#include "core/device.h"
#include "core/error.h"
#include "core/field_name.h"
#include "core/log.h"
#include "engine/local_latents.h"
#include "engine/phases.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/graph_recorder.h"
#include "plan/trace_model.h"

namespace tessera::plan {
namespace {

using parallel::Axis;

// The folder of the denoiser among the parts of a family.
std::string denoiser_folder(const engine::Model& model) {
  for (const char* name : {"transformer", "unet"}) {
    if (model.has_part(name)) return name;
  }
  TESSERA_CHECK(false, "{} has no denoiser", model.family->title);
}

// Declares what the text encoders give. `conditionings` are by prompt.
void add_prompts(GraphRecorder& recorder, const std::vector<models::Conditioning>& conditionings) {
  for (size_t i = 0; i < conditionings.size(); ++i) {
    for (const auto& [name, tensor] : conditionings[i]) {
      if (!tensor.is_meta()) continue;  // a number of tokens
      const std::string shown = name == models::kTokens ? "prompt" : name;
      recorder.add_input(fmt::format("{}.{}", shown, i), tensor);
    }
  }
}

// A run on meta tensors, by a rank without the others.
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
  // What stands for a GPU takes no other way than the plain one, which has a form for each operation.
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

}  // namespace

Graph record_denoiser(const engine::Settings& settings, const engine::Model& model,
                      const parallel::Layout& layout, int64_t rank) {
  TracedRun traced(settings, model, layout, rank);
  engine::RunContext& run = *traced.context;
  if (encodes_prompts(model)) {
    const SuppressLog suppress_log;
    engine::encode(run);
  }
  const std::map<std::string, at::Tensor> conditions = run.conditions();
  const at::Tensor z = on_meta(run.latent_sizes());
  const models::Timestep timestep{.value = 0, .on_device = on_meta({1})};

  GraphRecorder recorder;
  recorder.begin_part(denoiser_folder(model));
  const auto denoiser = run.load<models::Denoiser>(engine::kDenoiser, engine::Phase::kLoadDenoiser);
  if (run.prompts.empty()) run.prompts = longest_prompts(run, *denoiser);
  const std::vector<models::Conditioning> prompts = run.group().of(run.prompts);
  add_prompts(recorder, prompts);
  for (const auto& [name, numbers] : conditions) recorder.add_input(name, numbers);
  recorder.add_input("timestep", timestep.on_device);
  const std::vector<int64_t> samples = run.group().guidance.front().samples(run.ranks);
  engine::DenoiserStage stage(*denoiser, model.shape, prompts, samples, run.settings.latents, run.ranks,
                              conditions);
  const Range patches = stage.cut().all_patches();
  std::vector<int64_t> sizes = engine::LocalLatents(z, stage, run.ranks).empty(patches).sizes().vec();
  sizes.front() = stage.samples();
  const at::Tensor latents = on_meta(sizes);
  recorder.add_input("latents", latents);
  const parallel::Tensors out = stage.run({.index = 0, .count = 1, .timestep = timestep}, patches, {latents});
  recorder.add_result("prediction", out.front());
  Graph graph = recorder.take();
  graph.prompt_of_sample = samples;
  for (const auto& [name, numbers] : conditions) {
    if (numbers.numel() == 1) graph.numbers[name] = numbers.item<double>();
  }
  return graph;
}

namespace {

Graph record_named(const std::string& part, const engine::Settings& settings, const engine::Model& model,
                   const parallel::Layout& layout, int64_t rank) {
  const bool has_decoder = model.has_part("vae");
  std::vector<std::string> known = {engine::kDenoiser};
  if (has_decoder) known.emplace_back(engine::kDecoder);
  if (part == engine::kDenoiser) return record_denoiser(settings, model, layout, rank);
  if (part == engine::kDecoder && has_decoder) return record_decoder(settings, model, layout, rank);
  const std::vector<models::TextEncoderPart> encoders = model.text_encoders();
  for (size_t i = 0; i < encoders.size(); ++i) {
    if (encoders[i].name == part) return record_text_encoder(settings, model, layout, rank, i);
    known.push_back(encoders[i].name);
  }
  usage_error(field("part"), "the model has no '{}'; its parts are {}", part, fmt::join(known, ", "));
}

}  // namespace

Graph record_program(const std::string& part, const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank) {
  if (layout.sizes[Axis::kPipeline] > 1 || layout.displacement)
    throw Error(ErrorKind::kUsage, "stablehlo",
                "PipeFusion and displaced patches take activations of earlier steps, for which there is no "
                "program yet");
  if (part == engine::kDecoder && settings.request.vae_tiling)
    usage_error(field("vae_tiling"), "decodes tile by tile, for which there is no program; leave it out");
  try {
    return record_named(part, settings, model, layout, rank);
  } catch (const engine::SettledEnd& end) {
    std::rethrow_exception(end.cause);
  }
}

namespace {

// In this order methods divide what several of them divide: samples into branches of guidance, of which each
// has the pictures in their order, sequences into the parts of Ring and then of
// Ulysses, heads into those of tensor parallelism, by outputs and then by inputs, and then of Ulysses.
constexpr std::array kDividingOrder = {Axis::kCfg,  Axis::kData,        Axis::kPipeline,    Axis::kDisplaced,
                                       Axis::kRing, Axis::kTensorInner, Axis::kTensorOuter, Axis::kUlysses};
static_assert(kDividingOrder.size() == parallel::kAllAxes.size());

// The layout of one method of several.
parallel::Layout with_axis_alone(parallel::Layout layout, Axis axis, int64_t size) {
  layout.sizes = parallel::PerAxis(1);
  layout.sizes[axis] = size;
  return layout;
}

}  // namespace

ShardedGraph record_sharded_program(const std::string& part, const engine::Settings& settings,
                                    const engine::Model& model, const parallel::Layout& layout) {
  parallel::Layout divided = layout;
  const int64_t frames = model.shape.token_grid(settings.latents).frames,
                sequence = parallel::Mesh(layout.sizes).size(parallel::kSequenceAxes);
  // Tokens are in the order of their frames, and a sharding has contiguous parts.
  if (sequence > 1 && frames % sequence == 0) divided.rank_axis = parallel::GridAxis::kFrames;
  const auto record = [&](Axis axis, int64_t size) {
    return record_program(part, settings, model, with_axis_alone(divided, axis, size), 0);
  };
  std::vector<MeshAxis> mesh;
  for (auto axis = parallel::kAllAxes.rbegin(); axis != parallel::kAllAxes.rend(); ++axis) {
    if (layout.sizes[*axis] > 1)
      mesh.push_back({std::string(parallel::axis_name(*axis)), layout.sizes[*axis]});
  }
  std::vector<MethodGraph> methods;
  for (const Axis axis : kDividingOrder) {
    const int64_t size = layout.sizes[axis];
    if (size == 1) continue;
    const bool divides_samples = part == engine::kDenoiser && (axis == Axis::kCfg || axis == Axis::kData);
    methods.push_back(
        {{{std::string(parallel::axis_name(axis)), size}}, divides_samples, record(axis, size)});
  }
  return shard_graph(record(Axis::kData, 1), methods, std::move(mesh));
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
                                  parallel::GridAxis::kRows, 1, group.size),
                    {.ring = group, .all = group});
  const at::Tensor latents =
      on_meta({count, model.shape.latent_channels, tokens.held().rows, shape.latent_width});
  recorder.add_input("latents", latents);
  const int64_t frames = std::min(clip.first_frames.value_or(clip.frames), run.settings.frames);
  recorder.add_result("frames", decoder->decode_clip(latents, frames, tokens, decoder->begin_video().get()));
  return recorder.take();
}

}  // namespace tessera::plan
