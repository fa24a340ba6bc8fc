#include "bench/video.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <numeric>

#include "bench/random_source.h"
#include "bench/worker.h"
#include "comm/collectives.h"
#include "comm/world.h"
#include "core/error.h"
#include "engine/denoise.h"
#include "engine/video_decode.h"
#include "launch/cores.h"
#include "launch/rank_environment.h"
#include "models/stdit/loading.h"
#include "models/stdit/video_vae.h"
#include "ops/operation.h"
#include "samplers/rectified_flow.h"

namespace tessera {
namespace {

// A video of 51 frames, with prompts of 300 tokens.
constexpr int64_t kFrames = 51, kLatentFrames = 15, kTokens = 300, kScale = 8;

struct Video {
  int64_t height, width;
  models::LatentShape latents() const {
    return {.latent_height = height / kScale,
            .latent_width = width / kScale,
            .scale_factor = kScale,
            .latent_frames = kLatentFrames};
  }
};

using Work = std::function<double()>;  // returns seconds

// What a step of a run takes in the middle of it: a pipeline fills in the first two steps and drains in the
// last.
double typical(std::vector<double> steps) {
  constexpr size_t kFirst = 2, kLast = 1;
  if (steps.size() > kFirst + kLast) steps = {steps.begin() + kFirst, steps.end() - kLast};
  std::nth_element(steps.begin(), steps.begin() + static_cast<int64_t>(steps.size() / 2), steps.end());
  return steps[steps.size() / 2];
}

// Denoises in `steps` steps, with guidance.
Work denoiser_work(const std::filesystem::path& model, const weights::Placement& placement,
                   const Video& video, comm::World& world, const parallel::ParallelOptions& options,
                   int64_t steps) {
  const models::DenoiserShape shape = models::read_stdit3_shape(model);
  const models::LatentShape latents = video.latents();
  parallel::Workload workload = engine::workload_of(shape, latents);
  workload.steps = steps;
  const parallel::Ranks ranks(world, parallel::resolve_layout(options, workload, world.size()));
  models::LoadOptions load;
  load.placement = placement;
  load.placement.groups = {ranks.tensor_inner, ranks.tensor_outer};
  if (ranks.pipeline.size > 1) load.blocks = ranks.layout.stage(ranks.pipeline.rank);
  models::LoadStatistics statistics;
  const std::shared_ptr<models::Denoiser> denoiser = models::load_stdit3(model, load, statistics);
  const std::vector<models::Conditioning> prompts(
      2, {{models::kTokens, at::randn({kTokens, denoiser->conditioning_width()})}});
  const at::Tensor z = at::randn(shape.latent_sizes(latents, 1));
  return [=] {
    const auto number = [](int64_t value) { return at::full({1}, value, at::kFloat); };
    const samplers::RectifiedFlow sampler({.steps = steps,
                                           .height = static_cast<double>(video.height),
                                           .width = static_cast<double>(video.width),
                                           .num_frames = kFrames});
    engine::Guidance guidance;
    guidance.add(1, 0, 7.0);
    engine::DenoiserStage stage(
        *denoiser, shape, prompts, guidance.samples(ranks), latents, ranks,
        {{"fps", number(24)}, {"height", number(video.height)}, {"width", number(video.width)}});
    engine::Noise noise({{0, 1}});
    std::vector<double> seconds;
    engine::denoise({stage, sampler, guidance, ranks}, z, noise, {}, seconds);
    return typical(seconds);
  };
}

comm::Group everyone(comm::World& world) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  comm::Group group = world.group(all, "vae");
  if (group.size > 1) comm::connect(group, at::kCPU);
  return group;
}

models::VideoVaeConfig vae_config() {
  const JsonConfig spatial({{"block_out_channels", {128, 256, 512, 512}},
                            {"down_block_types", std::vector<std::string>(4, "DownEncoderBlock2D")},
                            {"up_block_types", std::vector<std::string>(4, "UpDecoderBlock2D")},
                            {"layers_per_block", 2},
                            {"scaling_factor", 0.18215}},
                           "bench");
  return {.spatial = models::AutoencoderKLConfig(spatial),
          .temporal = models::TemporalVaeConfig(JsonConfig(Json::object(), "bench"))};
}

// Decodes the latents of frames alone.
class TemporalHalf final : public models::Decoder {
 public:
  TemporalHalf(const weights::Scope& scope, const models::VideoVaeConfig& config)
      : config_(config), decoder_(scope / "temporal_vae", config.temporal) {}
  at::Tensor decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& tokens,
                         models::ClipMemory* /*memory*/) const override {
    return decoder_(z, frames, nn::Rows(tokens));
  }
  Clip clip() const override { return {config_.clip, config_.latent_clip()}; }
  int64_t scale_factor() const override { return 1; }
  int64_t clip_bytes(int64_t /*height*/, int64_t /*width*/) const override { return 0; }

 private:
  models::VideoVaeConfig config_;
  models::TemporalDecoder decoder_;
};

// Decodes the frames, or, with `temporal`, only their latents. Ranks divide clips (`deals`) or rows.
Work decoder_work(const weights::Placement& placement, const Video& video, comm::World& world, bool temporal,
                  bool deals) {
  RandomSource source;
  const weights::Scope scope(source, placement);
  const models::VideoVaeConfig config = vae_config();
  std::shared_ptr<const models::Decoder> decoder;
  if (temporal) {
    decoder = std::make_shared<TemporalHalf>(scope, config);
  } else {
    decoder = std::make_shared<models::VideoVaeDecoder>(scope, config);
  }
  const comm::Group group = everyone(world);
  const models::LatentShape latents = video.latents();
  const at::Tensor z = at::randn({kLatentFrames, 4, latents.latent_height, latents.latent_width});
  const auto convert = [temporal](const at::Tensor& x) {
    const at::Tensor by_pixel = x.permute({0, 2, 3, 1});
    return temporal ? by_pixel : ((by_pixel * 0.5 + 0.5).clamp(0, 1) * 255).round().to(at::kByte);
  };
  return [=] {
    const auto begin = std::chrono::steady_clock::now();
    engine::decode_video(*decoder, z, kFrames, group, {.convert = convert, .deals_clips = deals},
                         [](const at::Tensor& /*frames*/) {});
    comm::barrier(group);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
}

// FLOPs of all operations of this rank.
int64_t flops_of(const Work& work) {
  int64_t flops = 0;
  const ops::ObserveOperations observe([&](const ops::Operation& operation) { flops += operation.flops; });
  work();
  return flops;
}

}  // namespace

int run_video(int argc, char** argv) {
  if (argc != 7) {
    std::cerr << "usage: tessera_bench video denoiser|flops|decoder|temporal-decoder FOLDER "
                 "fp32|bf16 HEIGHT WIDTH STEPS "
                 "JSON\nRanks are started as torchrun does.\n";
    return 2;
  }
  const c10::InferenceMode inference_mode;
  const auto place = launch::read_rank_environment([](const char* name) { return std::getenv(name); });
  comm::World world = place ? comm::World::join(*place) : comm::World();
  if (place)
    launch::pin_to(launch::share_of(launch::allowed_cores(), place->local_rank, place->local_world_size,
                                    at::get_num_threads()));
  const std::string part = argv[0];
  const weights::Placement placement{.dtype = std::string(argv[2]) == "bf16" ? at::kBFloat16 : at::kFloat};
  const Video video{std::stoll(argv[3]), std::stoll(argv[4])};
  const Work work =
      part == "denoiser" || part == "flops"
          ? denoiser_work(argv[1], placement, video, world,
                          read_fields(parallel::parallel_fields(), Json::parse(argv[6])), std::stoll(argv[5]))
          : decoder_work(placement, video, world, part == "temporal-decoder",
                         Json::parse(argv[6]).value("deals_clips", false));
  if (part == "flops") {
    std::cout << flops_of(work) << std::endl;
    return 0;
  }
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const double seconds = work();
    std::cout << seconds << " " << peak_bytes() << std::endl;
  }
  return 0;
}

}  // namespace tessera
