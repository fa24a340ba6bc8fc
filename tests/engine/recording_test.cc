// Tests that operations and messages that are recorded on the meta device, from shapes alone and without the
// other ranks, equal those of a real run on every rank.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "comm/recording.h"
#include "engine/denoise.h"
#include "models/stdit/stdit3.h"
#include "models/unet_2d_condition.h"
#include "ops/operation.h"
#include "tests/models/toys/all.h"
#include "tests/support/degrees.h"
#include "tests/support/plain_sampler.h"
#include "tests/support/random_pixart.h"
#include "tests/support/rank_threads.h"

namespace tessera::engine {
namespace {

struct Record {
  std::string what;
  int64_t flops = 0, bytes = 0;
  bool operator==(const Record&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Record& record) {
  return out << record.what << ": " << record.flops << " FLOPs, " << record.bytes << " bytes";
}

using Records = std::vector<Record>;

// Describes the source of the weights and the run.
struct Subject {
  models::DenoiserShape shape;
  std::function<std::unique_ptr<models::Denoiser>(const weights::Scope&, const models::LocalBlocks&)> load;
  std::function<std::unique_ptr<weights::Source>()> weights;
  models::LatentShape latent_shape;
  std::vector<int64_t> latents;  // [N, C, ...]
  std::vector<models::Conditioning> prompts;
  std::map<std::string, at::Tensor> numbers = {};  // by picture; "fps" is used on the device
  int64_t steps = 3;
};

Records record(const Subject& subject, comm::World world, const parallel::Layout& layout, at::Device device,
               at::ScalarType dtype = at::kFloat) {
  const c10::InferenceMode inference_mode;
  Records records;
  comm::CollectiveHooks hooks;
  hooks.began = [&](const comm::Collective& collective) {
    records.push_back({fmt::format("{} {}", collective.axis, collective.name), 0, collective.bytes});
  };
  world.set_hooks(hooks);
  const ops::ObserveOperations observe([&](const ops::Operation& operation) {
    records.push_back(
        {fmt::format("block {} {} {} [{}] {}", operation.block, operation.name, operation.role,
                     fmt::join(operation.output.shape, ", "), c10::toString(operation.output.dtype)),
         operation.flops, operation.bytes});
  });
  const parallel::Ranks ranks(world, layout);
  std::unique_ptr<weights::Source> source;
  if (device.is_meta()) {
    source = std::make_unique<weights::ShapeOnlySource>();
  } else {
    source = subject.weights();
  }
  std::optional<Range> blocks;
  if (ranks.pipeline.size > 1) blocks = ranks.layout.stage(ranks.pipeline.rank);
  const auto denoiser =
      subject.load(weights::Scope(*source, {dtype, device, {ranks.tensor_inner, ranks.tensor_outer}}),
                   models::LocalBlocks(subject.shape.blocks, blocks));
  std::vector<models::Conditioning> prompts = subject.prompts;
  for (models::Conditioning& prompt : prompts) {
    for (auto& [name, tensor] : prompt) tensor = tensor.to(device);
  }
  // The pictures have the last prompt; of two prompts the first is the negative one.
  Guidance guidance;
  const bool is_guided = subject.prompts.size() > 1;
  guidance.add(is_guided ? 1 : 0, 0, is_guided ? 2.0 : 1.0, subject.latents[0]);
  std::map<std::string, at::Tensor> numbers = subject.numbers;
  if (numbers.contains("fps")) numbers["fps"] = numbers["fps"].to(device);
  DenoiserStage stage(*denoiser, subject.shape, prompts, guidance.samples(ranks), subject.latent_shape, ranks,
                      numbers);
  Noise noise({{0, subject.latents[0]}});
  std::vector<double> seconds;
  const at::Tensor z = at::zeros(subject.latents, at::TensorOptions().device(device));
  const samplers::PlainSampler sampler(std::vector<double>(static_cast<size_t>(subject.steps), 1.5));
  denoise({stage, sampler, guidance, ranks}, z, noise, {}, seconds);
  world.set_hooks({});
  return records;
}

parallel::Layout layout_of(const Subject& subject, const parallel::ParallelOptions& options) {
  parallel::Workload workload = workload_of(subject.shape, subject.latent_shape);
  workload.steps = subject.steps;
  workload.pictures = subject.latents[0];
  return parallel::resolve_layout(options, workload, std::nullopt);
}

Subject small_pixart() {
  const auto model = std::make_shared<RandomPixArt>(/*heads=*/5, /*blocks=*/4);
  Subject subject;
  subject.shape = model->shape();
  subject.load = [model](const weights::Scope& scope, const models::LocalBlocks& local_blocks) {
    return std::make_unique<models::PixArtTransformer>(scope, model->config(), local_blocks);
  };
  subject.weights = [model] {
    return std::make_unique<weights::Checkpoint>(model->fixture().folder(), weights::Library::kTransformers);
  };
  subject.latent_shape = {.latent_height = 26, .latent_width = 12, .scale_factor = 8};
  subject.latents = {2, 4, 26, 12};
  for (const int64_t length : {1, 7}) {
    subject.prompts.push_back({{models::kTokens, at::zeros({length, RandomPixArt::kCaption})}});
  }
  return subject;
}

Subject toy(const models::toys::Toy& family) {
  Subject subject;
  subject.shape = family.shape();
  subject.load = family.load;
  subject.weights = [] { return std::make_unique<models::toys::RandomWeights>(); };
  subject.latent_shape = family.latent_shape();
  subject.latents = family.noise(2).sizes().vec();
  subject.prompts = family.prompts();
  subject.prompts.resize(2);
  if (family.takes_guidance_scale) subject.numbers[models::kGuidanceScale] = at::full({1}, 3.5, at::kDouble);
  return subject;
}

// Returns a U-Net with SDXL's kinds of blocks and these channels; `latents` are [N, 4, h, w].
Subject unet(const Json& config, std::vector<int64_t> latents, int64_t steps) {
  const models::UNet2DConfig numbers(JsonConfig(config, "config"));
  Subject subject;
  subject.shape = models::unet_shape(numbers);
  subject.load = [numbers](const weights::Scope& scope, const models::LocalBlocks&) {
    return std::make_unique<models::UNet2DConditionModel>(scope, numbers);
  };
  subject.weights = [] { return std::make_unique<models::toys::RandomWeights>(); };
  subject.latent_shape = {.latent_height = latents[2], .latent_width = latents[3], .scale_factor = 8};
  subject.latents = std::move(latents);
  const int64_t pooled = numbers.addition_inputs - 6 * numbers.addition_time_embed_dim;
  for (int64_t i = 0; i < 2; ++i) {
    subject.prompts.push_back({{models::kTokens, at::zeros({77, numbers.context_width()})},
                               {models::kPooled, at::zeros({pooled})}});
  }
  subject.steps = steps;
  return subject;
}

Json sdxl_config(std::vector<int64_t> channels, std::vector<int64_t> heads, std::vector<int64_t> layers) {
  return {{"block_out_channels", channels},
          {"attention_head_dim", heads},
          {"transformer_layers_per_block", layers},
          {"cross_attention_dim", channels.back()},
          {"norm_num_groups", channels.front() % 32 == 0 ? 32 : 8},
          {"use_linear_projection", true},
          {"addition_embed_type", "text_time"},
          {"addition_time_embed_dim", 256},
          {"projection_class_embeddings_input_dim", 2816},
          {"down_block_types", {"DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"}},
          {"up_block_types", {"CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"}}};
}

Subject small_unet() {
  return unet(sdxl_config({8, 16, 24}, {1, 2, 3}, {1, 1, 2}), {1, 4, 22, 16}, /*steps=*/4);
}

// Open-Sora's transformer on a video whose last row and column are completed.
Subject small_stdit3() {
  static const models::STDiTConfig config(JsonConfig(Json{{"depth", 4},
                                                          {"hidden_size", 40},
                                                          {"num_heads", 5},
                                                          {"caption_channels", 16},
                                                          {"model_max_length", 8}},
                                                     "config"));
  Subject subject;
  subject.shape = {.heads = config.num_heads,
                   .blocks = config.depth,
                   .patch = models::kSTDiTPatch,
                   .is_video = true,
                   .axial_attention = true};
  subject.load = [](const weights::Scope& scope, const models::LocalBlocks& local_blocks) {
    return std::make_unique<models::STDiT3>(scope, config, local_blocks, Range{0, config.in_channels});
  };
  subject.weights = [] { return std::make_unique<models::toys::RandomWeights>(); };
  subject.latent_shape = {.latent_height = 15, .latent_width = 9, .scale_factor = 8, .latent_frames = 7};
  subject.latents = {2, 4, 7, 15, 9};
  for (const int64_t length : {1, 7})
    subject.prompts.push_back({{models::kTokens, at::zeros({length, config.caption_channels})}});
  for (const auto& [name, value] : {std::pair{"fps", 24}, {"height", 120}, {"width", 72}})
    subject.numbers[name] = at::full({1}, value, at::kFloat);
  return subject;
}

// Returns PixArt for 0, Open-Sora for 1, and then the toys.
constexpr size_t kNetworks = 2;
Subject subject_of(size_t number) {
  if (number < kNetworks) return number == 0 ? small_pixart() : small_stdit3();
  return toy(models::toys::all_toys().at(number - kNetworks));
}

// Returns the methods and products of them, on 1 to 8 ranks.
std::vector<parallel::ParallelOptions> all_options() {
  std::vector<parallel::ParallelOptions> all(1);
  const auto add = [&](int64_t dp, bool cfg, int64_t pp, int64_t ring, int64_t ulysses, int64_t tp,
                       bool two = false, int64_t gather = 1) {
    parallel::ParallelOptions& options =
        all.emplace_back(parallel::degrees(dp, cfg, pp, ring, ulysses, tp, gather));
    if (two) options.split_scheme = parallel::SplitScheme::k2d;
    if (pp > 1) options.num_pipeline_patch = 2;
  };
  add(2, false, 1, 1, 1, 1);
  add(1, true, 1, 1, 1, 1);
  add(1, false, 2, 1, 1, 1);
  add(1, false, 1, 2, 1, 1);
  add(1, false, 1, 1, 2, 1);
  add(1, false, 1, 1, 1, 2);
  add(1, false, 3, 1, 1, 1);
  add(1, false, 1, 3, 1, 1);
  add(1, false, 1, 1, 1, 4, true);
  add(1, false, 1, 1, 5, 1);
  add(1, true, 1, 3, 1, 1);
  add(1, false, 1, 7, 1, 1);
  add(1, true, 1, 2, 2, 1);
  add(1, false, 2, 2, 2, 1);
  add(1, true, 2, 1, 1, 2);
  add(1, false, 1, 1, 1, 1, false, 3);
  add(1, false, 1, 2, 1, 1, false, 2);
  add(1, false, 2, 1, 2, 1, false, 2);
  return all;
}

// Returns displaced patches in all modes, once with CFG. Other methods are those of tests/plan/trace_test.cc.
std::vector<parallel::ParallelOptions> options_of_unets() {
  std::vector<parallel::ParallelOptions> all;
  for (const auto& [name, mode] : parallel::displaced_modes()) {
    parallel::ParallelOptions& options = all.emplace_back();
    options.displaced_patch_degree = 3;
    options.displaced_mode = mode;
    options.warmup_steps = 1;
  }
  all.back().use_cfg_parallel = true;
  return all;
}

void expect_recordings_of_all_ranks(const Subject& subject,
                                    const std::vector<parallel::ParallelOptions>& all) {
  for (const parallel::ParallelOptions& options : all) {
    const parallel::Layout layout = layout_of(subject, options);
    const int64_t size = options.degrees();
    std::vector<Records> real(static_cast<size_t>(size));
    comm::run_ranks_as_threads(
        size,
        [&](comm::World world) {
          const size_t rank = static_cast<size_t>(world.rank());
          real[rank] = record(subject, std::move(world), layout, at::kCPU);
        },
        comm::Wire::kShared);
    for (int64_t rank = 0; rank < size; ++rank) {
      const Records recorded = record(subject, comm::recording_world(rank, size), layout, at::kMeta);
      EXPECT_GT(recorded.size(), 90U);
      ASSERT_EQ(recorded.size(), real[static_cast<size_t>(rank)].size())
          << parallel::degrees_text(options) << ", rank " << rank;
      for (size_t i = 0; i < recorded.size(); ++i) {
        ASSERT_EQ(recorded[i], real[static_cast<size_t>(rank)][i])
            << parallel::degrees_text(options) << ", rank " << rank << ", operation " << i;
      }
    }
  }
}

class Recording : public ::testing::TestWithParam<size_t> {};

TEST_P(Recording, EqualsARealRunOnEveryRank) {
  expect_recordings_of_all_ranks(subject_of(GetParam()), all_options());
}

TEST(RecordingOfUNets, EqualsARealRunOnEveryRank) {
  expect_recordings_of_all_ranks(small_unet(), options_of_unets());
}

// Of a model that takes the guidance scale as an input.
TEST(RecordingOfUNets, EqualsARealRunOnEveryRankWithAScaleForEachPicture) {
  Json config = sdxl_config({8, 16, 24}, {1, 2, 3}, {1, 1, 2});
  config["time_cond_proj_dim"] = 8;
  Subject subject = unet(config, {2, 4, 22, 16}, /*steps=*/2);
  subject.numbers[models::kGuidanceScale] = at::tensor({7.5, 1.0}, at::kDouble);
  expect_recordings_of_all_ranks(
      subject, {parallel::degrees(1, false, 1, 1, 1, 1), parallel::degrees(2, false, 1, 1, 1, 1),
                parallel::degrees(1, false, 1, 1, 1, 2)});
}

// Returns the bytes that `rank` sends in one step of displaced patches in which everything is stale.
int64_t bytes_of_a_step(Subject subject, int64_t rank, int64_t ranks, at::ScalarType dtype) {
  parallel::ParallelOptions options;
  options.displaced_patch_degree = ranks;
  options.displaced_mode = parallel::DisplacedMode::kCorrectedAsyncGn;
  options.warmup_steps = 1;
  const auto bytes_of = [&](int64_t steps) {
    subject.steps = steps;
    int64_t bytes = 0;
    for (const Record& one :
         record(subject, comm::recording_world(rank, ranks), layout_of(subject, options), at::kMeta, dtype)) {
      if (one.what.starts_with("sp ")) bytes += one.bytes;
    }
    return bytes;
  };
  return bytes_of(6) - bytes_of(5);
}

// Returns the bytes that a U-Net of SDXL's form sends by a formula (arXiv:2402.19481, section 4). A rank with
// `share` of the rows sends keys and values of its tokens and moments of groups to all others, and one row of
// the input of each 3x3 convolution to its neighbours (with stride 2 only to the one below).
int64_t expected_bytes(const models::UNet2DConfig& config, const std::vector<int64_t>& latents, int64_t ranks,
                       double share, bool is_first, bool is_last, int64_t element) {
  const int64_t batch = 2 * latents[0], others = ranks - 1;
  const int64_t neighbours = (is_first ? 0 : 1) + (is_last ? 0 : 1);
  int64_t keys_values = 0, moments = 0, halos = 0;
  const auto level_size = [&](size_t level) { return std::pair(latents[2] >> level, latents[3] >> level); };
  const auto conv = [&](size_t level, int64_t in, int64_t to) {
    halos += batch * in * level_size(level).second * element * to;
  };
  const auto norm = [&] { moments += batch * config.norm_groups * 2 * 4 * others; };
  const auto resnet = [&](size_t level, int64_t in, int64_t out) {
    norm(), conv(level, in, neighbours), norm(), conv(level, out, neighbours);
  };
  const auto attention = [&](size_t level, int64_t layers) {
    if (layers == 0) return;
    norm();  // before proj_in
    const auto [rows, columns] = level_size(level);
    const auto own = static_cast<int64_t>(static_cast<double>(rows) * share) * columns;
    keys_values += layers * batch * own * 2 * config.levels[level].channels * element * others;
  };
  std::vector<int64_t> skips = {config.levels[0].channels};
  conv(0, config.in_channels, neighbours);  // conv_in, which is fresh
  for (size_t i = 0; i < config.levels.size(); ++i) {
    const auto& level = config.levels[i];
    for (int64_t j = 0; j < level.layers; ++j) {
      resnet(i, skips.back(), level.channels), attention(i, level.down_transformers);
      skips.push_back(level.channels);
    }
    if (i + 1 == config.levels.size()) break;
    conv(i, level.channels, is_last ? 0 : 1);
    skips.push_back(level.channels);
  }
  const size_t deepest = config.levels.size() - 1;
  int64_t channels = config.levels.back().channels;
  resnet(deepest, channels, channels), attention(deepest, config.mid_transformers),
      resnet(deepest, channels, channels);
  for (size_t i = config.levels.size(); i-- > 0;) {
    const auto& level = config.levels[i];
    for (int64_t j = 0; j <= level.layers; ++j) {
      resnet(i, channels + skips.back(), level.channels), attention(i, level.up_transformers);
      skips.pop_back();
      channels = level.channels;
    }
    if (i > 0) conv(i, channels, neighbours);  // of the small picture
  }
  norm(), conv(0, channels, neighbours);
  return keys_values + moments + halos;
}

TEST(RecordingOfUNets, SendsTheBytesOfTheFormula) {
  struct Case {
    Json config;
    std::vector<int64_t> latents;
    int64_t ranks;
    at::ScalarType dtype;
  };
  const Json sdxl = sdxl_config({320, 640, 1280}, {5, 10, 20}, {1, 2, 10});
  for (const Case& c :
       {Case{sdxl_config({16, 32, 64}, {1, 2, 4}, {1, 1, 2}), {1, 4, 32, 24}, 2, at::kFloat},
        Case{sdxl_config({16, 32, 64}, {1, 2, 4}, {1, 1, 2}), {2, 4, 48, 16}, 4, at::kBFloat16},
        Case{sdxl, {1, 4, 128, 128}, 2, at::kBFloat16}, Case{sdxl, {1, 4, 128, 128}, 8, at::kBFloat16}}) {
    const Subject subject = unet(c.config, c.latents, 1);
    const models::UNet2DConfig config(JsonConfig(c.config, "config"));
    for (const int64_t rank : {int64_t{0}, c.ranks / 2, c.ranks - 1}) {
      EXPECT_EQ(bytes_of_a_step(subject, rank, c.ranks, c.dtype),
                expected_bytes(config, c.latents, c.ranks, 1.0 / static_cast<double>(c.ranks), rank == 0,
                               rank + 1 == c.ranks, static_cast<int64_t>(c10::elementSize(c.dtype))))
          << c.latents[2] << " rows, rank " << rank << " of " << c.ranks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Recording,
                         ::testing::Range(size_t{0}, kNetworks + models::toys::all_toys().size()),
                         [](const auto& info) {
                           if (info.param < kNetworks)
                             return std::string(info.param == 0 ? "PixArt" : "STDiT3");
                           return models::toys::all_toys()[info.param - kNetworks].name;
                         });

// Returns PixArt-XL at 1024 pixels, from its config alone.
Subject pixart_xl() {
  static const models::PixArtConfig config(JsonConfig(
      Json{{"sample_size", 128}, {"caption_channels", 4096}, {"use_additional_conditions", false}}, ""));
  Subject subject;
  subject.shape = {.heads = 16, .blocks = 28, .latent_channels = 4, .sample_size = 128, .patch = {1, 2, 2}};
  subject.load = [](const weights::Scope& scope, const models::LocalBlocks& local_blocks) {
    return std::make_unique<models::PixArtTransformer>(scope, config, local_blocks);
  };
  subject.latent_shape = {.latent_height = 128, .latent_width = 128, .scale_factor = 8};
  subject.latents = {1, 4, 128, 128};
  subject.prompts = {{{models::kTokens, at::empty({120, 4096}, at::kMeta)}}};
  subject.steps = 1;
  return subject;
}

// The expected FLOPs of a forward are computed by hand: products of 4,096 tokens and of the prompt's 120, and
// attention among and between them.
TEST(RecordingOfPixArtXL, CountsWhatTheFormulasGive) {
  const Records records =
      record(pixart_xl(), comm::recording_world(0, 1), parallel::Layout{.stage_blocks = {28}}, at::kMeta);
  int64_t flops = 0;
  for (const Record& one : records) {
    const bool is_product = one.what.find(" linear ") != std::string::npos;
    const bool is_attention = one.what.find(" attention ") != std::string::npos;
    if (is_product || is_attention) flops += one.flops;
  }
  const int64_t n = 4096, l = 120, c = 1152;
  const int64_t block =
      2 * n * c * (4 * c + 2 * c + 8 * c) + 2 * l * c * 2 * c + 4 * n * n * c + 4 * n * l * c;
  const int64_t ends = 2 * n * 16 * c * 2 + 2 * l * (4096 * c + c * c) + 2 * (256 * c + c * c + c * 6 * c);
  EXPECT_EQ(flops, 28 * block + ends);
}

TEST(RecordingOfPixArtXL, SixteenRanksAreOneSixteenthOfTheProducts) {
  const Subject subject = pixart_xl();
  const parallel::Layout layout = layout_of(subject, parallel::degrees(1, false, 1, 4, 4, 1));
  int64_t of_feed_forward = 0;
  for (int64_t rank = 0; rank < 16; ++rank) {
    for (const Record& one : record(subject, comm::recording_world(rank, 16), layout, at::kMeta)) {
      if (one.what.find(".ff.net.2 ") != std::string::npos) of_feed_forward += one.flops;
    }
  }
  EXPECT_EQ(of_feed_forward, int64_t{28} * 2 * 4096 * 1152 * 4608);
}

}  // namespace
}  // namespace tessera::engine
