#include "tests/models/stdit/component.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <numeric>

#include "comm/collectives.h"
#include "core/error.h"
#include "engine/denoise.h"
#include "engine/gather.h"
#include "engine/video_decode.h"
#include "models/stdit/stdit2.h"
#include "models/stdit/stdit3.h"
#include "models/stdit/video_vae.h"
#include "parallel/layout.h"
#include "samplers/iddpm.h"
#include "samplers/rectified_flow.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "weights/checkpoint.h"

namespace tessera::models {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

// One step whose result is what the model predicts.
struct Evaluation final : samplers::Sampler {
  explicit Evaluation(double timestep) { timesteps_ = {timestep}; }
  at::Tensor scale_model_input(const at::Tensor& z, int64_t /*index*/) const override { return z; }
  at::Tensor step(const at::Tensor& output, int64_t /*index*/, const at::Tensor& /*z*/,
                  samplers::SamplerState& /*state*/, const at::Tensor& /*noise*/) const override {
    return output;
  }
  at::Tensor predicted_sample(const at::Tensor& output, int64_t, const at::Tensor&) const override {
    return output;
  }
};

struct Case {
  JsonConfig json;
  std::filesystem::path weights;
  Tensors tensors;

  // Of the model.
  STDiTConfig config() const {
    const char* const key = json.has("model_config") ? "model_config" : "config";
    return STDiTConfig(JsonConfig(json.values().at(key), json.where()));
  }
  const at::Tensor& in(const std::string& name) const { return tensors.at("in." + name); }
  bool has(const std::string& name) const { return tensors.contains("in." + name); }
  // The row of sample `i`; a single row is that of all samples.
  at::Tensor row(const std::string& name, int64_t i) const {
    const at::Tensor& all = in(name);
    return all.narrow(0, all.size(0) == 1 ? 0 : i, 1);
  }
  // The real tokens of sample `i`, [L, D].
  at::Tensor text(int64_t i) const {
    return row("y", i)[0][0].narrow(0, 0, row("mask", i).sum().item<int64_t>());
  }
};

Case read_case(const std::filesystem::path& file) {
  Case one{.json = JsonConfig::read(file), .weights = {}, .tensors = {}};
  one.weights = file.parent_path() / one.json.string("weights");
  one.tensors = read_tensors(file.parent_path() / one.json.string("io"));
  return one;
}

std::unique_ptr<weights::Checkpoint> open_weights(const std::filesystem::path& path) {
  auto file = weights::open_tensor_file(path);
  weights::NamedTensors tensors = weights::named_tensors({file});
  return std::make_unique<weights::Checkpoint>(std::move(file), std::move(tensors));
}

std::unique_ptr<Denoiser> load(const Case& one, const parallel::Ranks& ranks, Range channels) {
  const STDiTConfig config = one.config();
  std::optional<Range> blocks;
  if (ranks.pipeline.size > 1) blocks = ranks.layout.stage(ranks.pipeline.rank);
  const auto checkpoint = open_weights(one.weights);
  const weights::Scope scope(*checkpoint, {.groups = {ranks.tensor_inner, ranks.tensor_outer}});
  const LocalBlocks local_blocks(config.depth, blocks);
  const std::string kind = one.json.string("kind");
  if (kind == "stdit2.forward" || kind == "iddpm.sample")
    return std::make_unique<STDiT2>(scope, config, local_blocks, channels);
  return std::make_unique<STDiT3>(scope, config, local_blocks, channels);
}

DenoiserShape shape_of(const STDiTConfig& config) {
  return {.heads = config.num_heads,
          .blocks = config.depth,
          .latent_channels = config.in_channels,
          .patch = kSTDiTPatch,
          .is_video = true,
          .axial_attention = true};
}

// What the model predicts for sample `i` alone, [1, channels.length, T, h, w], on the first rank. The loop
// steps as many channels as it has latents; so a model with more is evaluated for some of them at a time.
at::Tensor forward(const Case& one, const parallel::Ranks& ranks, int64_t i, Range channels,
                   const at::Tensor& denoised_frames) {
  const STDiTConfig config = one.config();
  const auto denoiser = load(one, ranks, channels);
  const at::Tensor x = one.row("x", i);
  const LatentShape latents{
      .latent_height = x.size(3), .latent_width = x.size(4), .scale_factor = 8, .latent_frames = x.size(2)};
  std::map<std::string, at::Tensor> by_picture;
  for (const char* name : {"fps", "height", "width", "num_frames", "ar"}) {
    if (one.has(name)) by_picture[name] = one.row(name, i);
  }
  const std::vector<Conditioning> prompts = {{{kTokens, one.text(i)}}};
  engine::Guidance guidance;
  guidance.add(0, 0, 1);
  engine::DenoiserStage stage(*denoiser, shape_of(config), prompts, guidance.samples(ranks), latents, ranks,
                              by_picture);
  engine::Noise noise({{0, 1}});
  std::vector<double> seconds;
  const Evaluation evaluation(one.row("timestep", i).item<double>());
  engine::Denoising work{stage, evaluation, guidance, ranks};
  if (denoised_frames.defined()) work.denoised_frames = denoised_frames.narrow(0, i, 1).unsqueeze(0);
  return engine::denoise(work, x, noise, {}, seconds);
}

at::Tensor forward_of_all(const Case& one, const parallel::Ranks& ranks, const at::Tensor& denoised_frames) {
  const STDiTConfig config = one.config();
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < one.in("x").size(0); ++i) {
    std::vector<at::Tensor> channels;
    for (int64_t first = 0; first < config.out_channels(); first += config.in_channels)
      channels.push_back(forward(one, ranks, i, {first, config.in_channels}, denoised_frames));
    if (channels.front().defined()) samples.push_back(at::concat(channels, 1));
  }
  return samples.empty() ? at::Tensor() : at::concat(samples);
}

Tensors run_forward(const Case& one, const parallel::Ranks& ranks) {
  if (!one.has("x_mask")) return {{"out.x", forward_of_all(one, ranks, {})}};
  return {{"out.x", forward_of_all(one, ranks, one.in("x_mask").to(at::kBool))},
          {"out.x_without_x_mask", forward_of_all(one, ranks, {})}};
}

// Every prompt, and for each the null text of its length: conditionings 2 i and 2 i + 1.
std::vector<Conditioning> prompts_of(const Case& one) {
  std::vector<Conditioning> prompts;
  for (int64_t i = 0; i < one.in("z").size(0); ++i) {
    prompts.push_back({{kTokens, one.text(i)}});
    prompts.push_back({{kNullTokens, at::scalar_tensor(one.text(i).size(0), at::kLong)}});
  }
  return prompts;
}

std::unique_ptr<samplers::VideoSampler> sampler_of(const Case& one) {
  const JsonConfig options(one.json.values().at("config"), one.json.where());
  const int64_t steps = options.integer("num_sampling_steps");
  if (one.json.string("kind") == "iddpm.sample") return std::make_unique<samplers::Iddpm>(steps);
  const auto number = [&](const char* name) { return one.row(name, 0).item<double>(); };
  return std::make_unique<samplers::RectifiedFlow>(
      samplers::RectifiedFlowOptions{.steps = steps,
                                     .num_timesteps = options.integer("num_timesteps"),
                                     .use_discrete_timesteps = options.boolean("use_discrete_timesteps"),
                                     .use_timestep_transform = options.boolean("use_timestep_transform"),
                                     .height = number("height"),
                                     .width = number("width"),
                                     .num_frames = static_cast<int64_t>(number("num_frames"))});
}

std::map<std::string, at::Tensor> numbers_of(const Case& one) {
  std::map<std::string, at::Tensor> numbers;
  for (const char* name : {"fps", "height", "width", "num_frames", "ar"}) {
    if (one.has(name)) numbers[name] = one.in(name);
  }
  return numbers;
}

// Sampling with guidance. The latents that the model gets are those after the step before, with the noise of
// frames that begin to be denoised; on the first rank.
Tensors run_sampling(const Case& one, const parallel::Ranks& ranks) {
  const JsonConfig options(one.json.values().at("config"), one.json.where());
  const std::unique_ptr<samplers::VideoSampler> made = sampler_of(one);
  const samplers::VideoSampler& sampler = *made;
  const at::Tensor& z = one.in("z");
  const int64_t videos = z.size(0);
  const STDiTConfig config = one.config();
  // Of the noise alone, or of its variance too.
  const int64_t channels = sampler.needs_noise(0) ? config.out_channels() : config.in_channels;
  const auto denoiser = load(one, ranks, {0, channels});
  const LatentShape latents{
      .latent_height = z.size(3), .latent_width = z.size(4), .scale_factor = 8, .latent_frames = z.size(2)};
  engine::Guidance guidance;
  for (int64_t i = 0; i < videos; ++i) guidance.add(2 * i, 2 * i + 1, options.number("cfg_scale"));
  const std::vector<Conditioning> prompts = prompts_of(one);
  engine::DenoiserStage stage(*denoiser, shape_of(config), prompts, guidance.samples(ranks), latents, ranks,
                              numbers_of(one));
  engine::Denoising work{stage, sampler, guidance, ranks};
  const auto noise_of = [&](int64_t step) {
    return one.has("step_noise") ? one.in("step_noise")[step] : at::zeros_like(z);
  };
  std::optional<engine::GivenFrames> given;
  if (one.has("frame_mask")) {
    given.emplace(one.in("frame_mask"), sampler, noise_of);
    std::vector<at::Tensor> denoised;
    for (int64_t step = 0; step < sampler.steps(); ++step) denoised.push_back(given->masks(step).denoised);
    work.denoised_frames = at::stack(denoised);
    work.given = &*given;
  }
  std::vector<at::Tensor> inputs;
  const auto add_input = [&](const at::Tensor& latest, int64_t step) {
    if (step == sampler.steps()) return;
    inputs.push_back(given ? given->entered(latest, given->masks(step).entering, noise_of(step), step)
                           : latest);
  };
  add_input(z, 0);
  engine::Observer observer;
  observer.preview_every = 1;
  observer.previewed = [&](const engine::Preview& preview) { add_input(preview.latents, preview.step + 1); };
  engine::Noise noise({{0, videos}});
  std::vector<double> seconds;
  const at::Tensor result = engine::denoise(work, z, noise, observer, seconds);
  const at::Tensor all = result.defined() ? engine::gather_pictures(result, videos, ranks.data) : result;
  if (!all.defined()) return {};
  if (one.json.string("kind") == "iddpm.sample") {
    Tensors outputs = {{"out.z", all}};
    for (size_t step = 0; step < inputs.size(); ++step)
      outputs[fmt::format("out.model_input.{}", step)] = inputs[step];
    return outputs;
  }
  const at::Tensor timesteps =
      at::tensor(at::ArrayRef<double>(sampler.timesteps()), at::kDouble).to(at::kFloat);
  Tensors outputs = {{"out.z", all},
                     {"out.model_input", at::stack(inputs)},
                     {"out.timesteps", timesteps.unsqueeze(1).expand({-1, videos}).contiguous()}};
  if (given) outputs["out.x_mask"] = work.denoised_frames.to(at::kByte);
  return outputs;
}

// All ranks of a world, connected.
comm::Group everyone(comm::World& world) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  comm::Group group = world.group(all, "vae");
  if (group.size > 1) comm::connect(group, at::kCPU);
  return group;
}

// Rows dim of the parts of all ranks, joined.
at::Tensor joined_rows(const at::Tensor& own, const parallel::Cut& cut, int64_t unit,
                       const comm::Group& group) {
  std::vector<Range> parts;
  for (int64_t rank = 0; rank < group.size; ++rank) parts.push_back(times(cut.part(0, rank), unit));
  return comm::all_gather(own, 2, parts, group);
}

// The object among `json` and what it holds that has the key.
const Json* object_with(const Json& json, const std::string& key) {
  if (!json.is_object()) return nullptr;
  if (json.contains(key)) return &json;
  for (const auto& [name, value] : json.items()) {
    if (const Json* const found = object_with(value, key)) return found;
  }
  return nullptr;
}

VideoVaeConfig video_vae_config(const Case& one) {
  const auto config = [&](const char* key) {
    const Json* const found = object_with(one.json.values().at("config"), key);
    if (found == nullptr) one.json.fail("config", fmt::format("an object with '{}'", key));
    return JsonConfig(*found, one.json.where());
  };
  const JsonConfig temporal = config("filters"), spatial = config("block_out_channels");
  const size_t levels = spatial.integers("block_out_channels").size();
  Json known = {{"block_out_channels", spatial.integers("block_out_channels")},
                {"down_block_types", std::vector<std::string>(levels, "DownEncoderBlock2D")},
                {"up_block_types", std::vector<std::string>(levels, "UpDecoderBlock2D")},
                {"layers_per_block", spatial.integer("layers_per_block", 2)},
                {"norm_num_groups", spatial.integer("norm_num_groups", 32)},
                {"scaling_factor", 0.18215}};
  return {.spatial = AutoencoderKLConfig(JsonConfig(known, one.json.where())),
          .temporal = TemporalVaeConfig(temporal)};
}

// The frames of latents z [T, C, h, w], [F, 3, H, W], on rank 0.
at::Tensor decoded(const Decoder& decoder, const at::Tensor& z, int64_t frames, const comm::Group& group) {
  const engine::VideoDecodeOptions options{
      .convert = [](const at::Tensor& x) { return x.permute({0, 2, 3, 1}); }};
  std::vector<at::Tensor> clips;
  engine::decode_video(decoder, z, frames, group, options, [&](const at::Tensor& x) { clips.push_back(x); });
  return clips.empty() ? at::Tensor() : at::concat(clips).permute({0, 3, 1, 2});
}

// Encodes videos and decodes latents of each number of frames, the ranks dividing clips or rows.
Tensors run_video_vae(const Case& one, comm::World& world) {
  const auto checkpoint = open_weights(one.weights);
  const weights::Scope scope(*checkpoint, {});
  const VideoVaeConfig config = video_vae_config(one);
  const VideoVaeEncoder encoder(scope, config);
  const VideoVaeDecoder decoder(scope, config);
  const comm::Group group = everyone(world);
  Tensors outputs;
  const auto add = [&](const std::string& key, const at::Tensor& frames) {  // [F, C, h, w]
    outputs[key] = frames.transpose(0, 1).unsqueeze(0).contiguous();
  };
  for (const auto& [key, x] : one.tensors) {
    if (!key.starts_with("in.") || !key.ends_with(".x")) continue;
    const std::string frames = key.substr(3, key.size() - 5);
    const auto of_frames = [](const at::Tensor& y) { return y[0].transpose(0, 1); };  // [F, C, h, w]
    add(fmt::format("mid.{}.spatial_mean", frames), encoder.encode_frames(of_frames(x)));
    add(fmt::format("out.{}.latent_mean", frames), encoder.encode(of_frames(x)));
    if (one.has(frames + ".noise_spatial")) {
      add(fmt::format("out.{}.latent_sample", frames),
          encoder.encode(of_frames(x), {.spatial = one.in(frames + ".noise_spatial"),
                                        .temporal = of_frames(one.in(frames + ".noise_temporal"))}));
    }
    at::Tensor pixels = decoded(decoder, of_frames(one.in(frames + ".z")), std::stoll(frames), group);
    if (group.rank == 0) add(fmt::format("out.{}.x", frames), pixels);
  }
  return outputs;
}

// Encodes and decodes latents of each number of frames, the ranks dividing the rows.
Tensors run_temporal_vae(const Case& one, comm::World& world) {
  const auto checkpoint = open_weights(one.weights);
  const weights::Scope scope = weights::Scope(*checkpoint, {}) / "temporal_vae";
  const TemporalVaeConfig config(JsonConfig(one.json.values().at("config"), one.json.where()));
  const TemporalEncoder encoder(scope, config);
  const TemporalDecoder decoder(scope, config);
  const comm::Group group = everyone(world);
  Tensors outputs;
  for (const int64_t frames : one.json.integers("frames")) {
    const std::string name = std::to_string(frames);
    const at::Tensor x = one.in(name + ".x"), z = one.in(name + ".z");
    const parallel::Cut cut({.rows = x.size(3), .columns = x.size(4)}, parallel::GridAxis::kRows, 1,
                            group.size);
    nn::Tokens tokens(cut, {.ring = group, .all = group});
    const nn::Rows rows(tokens);
    // [1, C, F, h, w] -> the local rows, [F, C, h', w]
    const auto local = [&](const at::Tensor& y) {
      return y[0].transpose(0, 1).narrow(2, rows.local().begin, rows.local().length);
    };
    const auto add = [&](const std::string& key, const at::Tensor& own) {
      outputs[key] = joined_rows(own, cut, 1, group).transpose(0, 1).unsqueeze(0).contiguous();
    };
    const auto [mean, logvar] = encoder(local(x), rows);
    add(fmt::format("out.{}.mean", frames), mean);
    add(fmt::format("out.{}.logvar", frames), logvar);
    add(fmt::format("out.{}.x", frames), decoder(local(z), frames, rows));
  }
  return outputs;
}

}  // namespace

std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& file) {
  return read_golden(std::filesystem::absolute(file).string());
}

std::map<std::string, at::Tensor> run_component(const std::filesystem::path& file,
                                                const parallel::ParallelOptions& options) {
  const Case one = read_case(file);
  const std::string kind = one.json.string("kind");
  Tensors outputs;
  if (kind == "vae.temporal" || kind == "vae.wrapper12") {
    comm::run_ranks_as_threads(
        std::max(options.degrees(), options.nproc.value_or(1)), [&](comm::World world) {
          const c10::InferenceMode inference_mode;
          const Tensors own =
              kind == "vae.temporal" ? run_temporal_vae(one, world) : run_video_vae(one, world);
          if (world.rank() == 0) outputs = own;
        });
    return outputs;
  }
  const bool samples = kind == "rflow.sample" || kind == "iddpm.sample";
  if (!samples && kind != "stdit2.forward" && kind != "stdit3.forward")
    one.json.fail(
        "kind", "stdit2.forward, stdit3.forward, rflow.sample, iddpm.sample, vae.temporal or vae.wrapper12");
  const STDiTConfig config = one.config();
  const at::Tensor& x = one.in(samples ? "z" : "x");
  // A model is evaluated for one sample at a time, without guidance.
  parallel::Workload workload = engine::workload_of(
      shape_of(config), {.latent_height = x.size(3), .latent_width = x.size(4), .latent_frames = x.size(2)});
  workload.guided = samples;
  if (samples) {
    workload.steps =
        JsonConfig(one.json.values().at("config"), one.json.where()).integer("num_sampling_steps");
    workload.pictures = x.size(0);
  }
  const parallel::Layout layout = parallel::resolve_layout(options, workload, std::nullopt);
  comm::run_ranks_as_threads(options.degrees(), [&](comm::World world) {
    const c10::InferenceMode inference_mode;
    const parallel::Ranks ranks(world, layout);
    const Tensors own = samples ? run_sampling(one, ranks) : run_forward(one, ranks);
    if (world.rank() == 0) outputs = own;
  });
  return outputs;
}

}  // namespace tessera::models
