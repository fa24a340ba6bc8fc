// Tests code for GPUs on a device that is as strict as one: host code does not touch its memory, and results
// equal the CPU's but for rounding, because other kernels compute them.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "engine/denoise.h"
#include "models/autoencoder_kl.h"
#include "models/qwen3.h"
#include "models/t5.h"
#include "parallel/layout.h"
#include "tests/support/golden.h"
#include "tests/support/random_pixart.h"
#include "tests/support/rank_threads.h"
#include "tests/support/strict_device.h"
#include "tests/support/temporary_folder.h"

namespace tessera::engine {
namespace {

// The device behaves as strict_device.h says.
TEST(StrictDevice, RefusesTheHostAndComputesAsTheCpu) {
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3}), y = x.to(strict_device());
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(::write(ends[1], y.const_data_ptr(), 4), -1);
  EXPECT_EQ(errno, EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);

  y.select(1, 1).add_(10);  // through a view
  EXPECT_TRUE(at::equal(y.cpu(), at::tensor({0, 11, 2, 3, 14, 5}, at::kFloat).view({2, 3})));
  EXPECT_TRUE(at::equal(at::concat({y, y.transpose(0, 1).reshape({2, 3})}).sum(0).cpu(),
                        at::concat({y.cpu(), y.cpu().transpose(0, 1).reshape({2, 3})}).sum(0)));
  EXPECT_EQ(at::full({2}, 3, y.options()).sum().item<double>(), 6);
}

struct Euler : samplers::Sampler {
  explicit Euler(int64_t steps, bool noisy = false) : noisy_(noisy) {
    for (int64_t i = 0; i < steps; ++i) timesteps_.push_back(900.0 / static_cast<double>(i + 1));
  }
  at::Tensor scale_model_input(const at::Tensor& z, int64_t) const override { return z * 0.9; }
  bool needs_noise(int64_t /*index*/) const override { return noisy_; }
  at::Tensor step(const at::Tensor& output, int64_t, const at::Tensor& z, samplers::SamplerState&,
                  const at::Tensor& noise) const override {
    const at::Tensor next = z - output * 0.1;
    return noisy_ ? next + noise * 0.1 : next;
  }
  at::Tensor predicted_sample(const at::Tensor& output, int64_t, const at::Tensor&) const override {
    return output;
  }
  bool noisy_;
};

// Runs two pictures with guidance on any number of ranks.
class PixArtRun {
 public:
  static constexpr int64_t kRows = 16, kColumns = 12, kSteps = 3;

  explicit PixArtRun(bool noisy = false, int64_t steps = kSteps) : sampler_(steps, noisy) {
    auto generator = at::detail::createCPUGenerator(3);
    z_ = at::randn({2, 4, kRows, kColumns}, generator);
    for (const int64_t length : {3, 7})
      prompts_.push_back({{models::kTokens, at::randn({length, RandomPixArt::kCaption}, generator)}});
    guidance_.add(1, 0, 3.0, 2);
  }

  at::Tensor operator()(at::Device device, const parallel::Ranks& ranks = {},
                        at::ScalarType dtype = at::kFloat) const {
    const c10::InferenceMode inference_mode;
    weights::Placement placement{dtype, device, {ranks.tensor_inner, ranks.tensor_outer}};
    std::optional<Range> blocks;
    if (ranks.pipeline.size > 1) blocks = ranks.layout.stage(ranks.pipeline.rank);
    const auto denoiser = model_.load(placement, blocks);
    std::vector<models::Conditioning> prompts = prompts_;
    for (models::Conditioning& prompt : prompts) {
      for (auto& [name, tensor] : prompt) tensor = tensor.to(device);
    }
    const models::LatentShape latent_shape{
        .latent_height = kRows, .latent_width = kColumns, .scale_factor = 8};
    DenoiserStage stage(*denoiser, model_.shape(), prompts, guidance_.samples(ranks), latent_shape, ranks);
    Noise noise({{5, 2}});
    std::vector<double> seconds;
    return denoise({stage, sampler_, guidance_, ranks}, z_.to(device), noise, {}, seconds);
  }

  parallel::Layout layout(const parallel::ParallelOptions& options) const {
    return parallel::resolve_layout(options,
                                    {.heads = model_.shape().heads,
                                     .blocks = model_.shape().blocks,
                                     .token_rows = kRows / 2,
                                     .steps = kSteps,
                                     .pictures = 2},
                                    std::nullopt);
  }

 private:
  RandomPixArt model_{/*heads=*/4, /*blocks=*/2};
  Euler sampler_;
  at::Tensor z_;
  std::vector<models::Conditioning> prompts_;
  Guidance guidance_;
};

TEST(OnAStrictDevice, PixArtEqualsTheCpu) {
  const PixArtRun pixart;
  const at::Tensor expected = pixart(at::kCPU), got = pixart(strict_device());
  EXPECT_EQ(got.device().type(), kStrict);
  EXPECT_LE(relative_error(got.cpu(), expected), kComponentTolerance);
}

// In a step the host never waits: uploads are queued, and nothing is downloaded.
TEST(OnAStrictDevice, AStepNeitherWaitsNorCopiesFromTheHost) {
  struct Counts {
    int64_t synchronizations, blocking, queued, downloads;
  };
  const auto count = [](int64_t steps, bool noisy) {
    const PixArtRun pixart(noisy, steps);
    StrictTraffic& traffic = strict_traffic();
    const Counts before{traffic.synchronizations, traffic.blocking_uploads, traffic.queued_uploads,
                        traffic.downloads};
    pixart(strict_device());
    return Counts{traffic.synchronizations - before.synchronizations,
                  traffic.blocking_uploads - before.blocking, traffic.queued_uploads - before.queued,
                  traffic.downloads - before.downloads};
  };
  for (const bool noisy : {false, true}) {
    const Counts few = count(2, noisy), many = count(5, noisy);
    EXPECT_EQ(few.synchronizations, 0);
    EXPECT_EQ(many.synchronizations, 0);
    EXPECT_EQ(few.blocking, many.blocking);
    EXPECT_EQ(few.downloads, many.downloads);
    EXPECT_EQ(many.queued, noisy ? 5 : 0);
  }
}

// Communicators keep NCCL's order, and tensors of host and device take separate ways.
TEST(OnAStrictDevice, EveryMethodEqualsOneRank) {
  const PixArtRun pixart;
  const at::Tensor expected = pixart(at::kCPU);
  std::vector<parallel::ParallelOptions> all(8);
  all[0].use_cfg_parallel = true;
  all[1].ulysses_degree = 2;
  all[2].ring_degree = 3;
  all[3].tensor_parallel_degree = 3;
  all[4].tensor_parallel_degree = 4;
  all[4].split_scheme = parallel::SplitScheme::k2d;
  all[5].ulysses_degree = all[5].ring_degree = 2;
  all[6].pipefusion_parallel_degree = 2;
  all[6].num_pipeline_patch = 2;
  all[6].warmup_steps = PixArtRun::kSteps;  // nothing is stale
  all[7].kv_gather_degree = all[7].ring_degree = 2;
  for (const parallel::ParallelOptions& options : all) {
    comm::run_ranks_as_threads(
        options.degrees(),
        [&](comm::World world) {
          const parallel::Ranks ranks(world, pixart.layout(options), strict_device());
          const at::Tensor got = pixart(strict_device(), ranks);
          if (world.rank() != 0) return;
          EXPECT_LE(relative_error(got.cpu(), expected), 1e-4) << parallel::degrees_text(options);
        },
        comm::Wire::kStrict);
  }
}

// With stale keys the result equals that of the same schedule on the CPU.
TEST(OnAStrictDevice, PipeFusionOfRanksEqualsTheCpu) {
  const PixArtRun pixart;
  parallel::ParallelOptions options;
  options.pipefusion_parallel_degree = options.ulysses_degree = 2;
  options.num_pipeline_patch = 2;
  const auto run = [&](at::Device device, comm::Wire wire) {
    at::Tensor result;
    comm::run_ranks_as_threads(
        4,
        [&](comm::World world) {
          const parallel::Ranks ranks(world, pixart.layout(options), device);
          const at::Tensor got = pixart(device, ranks);
          if (world.rank() == 0) result = got.cpu();
        },
        wire);
    return result;
  };
  EXPECT_LE(relative_error(run(strict_device(), comm::Wire::kStrict), run(at::kCPU, comm::Wire::kOrdered)),
            1e-4);
}

TEST(OnAStrictDevice, TheDecoderEqualsDiffusers) {
  const c10::InferenceMode inference_mode;
  for (const std::string name : {"vae-quant", "vae-shift"}) {
    const auto golden = read_golden(name + "/golden/golden.safetensors");
    models::LoadOptions options;
    options.placement.device = strict_device();
    models::LoadStatistics cost;
    const auto decoder = models::load_autoencoder_kl_decoder(golden_folder(name), options, cost);
    const at::Tensor image = decoder->decode(golden.at("latents").to(strict_device()));
    EXPECT_LE(relative_error(image.cpu().narrow(0, 0, 1), golden.at("image").narrow(0, 0, 1)),
              kComponentTolerance)
        << name;
  }
}

// Some VAEs overflow in fp16, and say so.
TEST(OnAStrictDevice, TheDecoderIsInFp32WhereItsFileAsksForThat) {
  const TemporaryFolder temporary;
  const auto bytes = [&](bool upcasts) {
    const std::filesystem::path folder = temporary.path() / (upcasts ? "upcasts" : "plain");
    std::filesystem::copy(golden_folder("vae-quant"), folder, std::filesystem::copy_options::recursive);
    Json json = read_json(folder / "config.json");
    json["force_upcast"] = upcasts;
    std::ofstream(folder / "config.json") << json.dump();
    models::LoadOptions options;
    options.placement.device = strict_device();
    options.placement.dtype = at::kHalf;
    models::LoadStatistics cost;
    models::load_autoencoder_kl_decoder(folder, options, cost);
    return static_cast<double>(cost.bytes_held);
  };
  EXPECT_GE(bytes(true), 1.9 * bytes(false));  // norms are always in fp32
}

TEST(OnAStrictDevice, T5EqualsTransformers) {
  const c10::InferenceMode inference_mode;
  const std::string name = "t5-gated";
  const auto golden = read_golden(name + "/golden/golden.safetensors");
  weights::Checkpoint checkpoint(golden_folder(name), weights::Library::kTransformers);
  const models::T5Encoder encoder(weights::Scope(checkpoint, {.device = strict_device()}),
                                  models::T5Config(JsonConfig::read(golden_folder(name) / "config.json")));
  const at::Tensor ids = golden.at("ids.7");
  const int64_t* first = ids.const_data_ptr<int64_t>();
  const at::Tensor out = encoder({{first, first + ids.numel()}}).at(0);
  EXPECT_LE(relative_error(out.cpu(), golden.at("output.7")), kComponentTolerance);
}

TEST(OnAStrictDevice, Qwen3EqualsTransformers) {
  const c10::InferenceMode inference_mode;
  const std::string name = "qwen3-grouped";
  const auto golden = read_golden(name + "/golden/golden.safetensors");
  weights::Checkpoint checkpoint(golden_folder(name), weights::Library::kTransformers);
  const models::Qwen3Encoder encoder(
      weights::Scope(checkpoint, {.device = strict_device()}),
      models::Qwen3Config(JsonConfig::read(golden_folder(name) / "config.json")), {4, -1});
  const at::Tensor ids = golden.at("ids.padded"), states = golden.at("states.padded");
  const int64_t* first = ids.const_data_ptr<int64_t>();
  const at::Tensor out = encoder({{{first, first + ids.numel()}, Range{0, 7}}}).at(0);
  EXPECT_LE(relative_error(out.cpu(), at::concat({states[4], states[5]}, 1)), kComponentTolerance);
}

}  // namespace
}  // namespace tessera::engine
