// Tests that traces of published models, which are made from their configs alone, hold as many weights as
// these models have parameters: as many as diffusers and the authors' code make of the same configs.
#include <gtest/gtest.h>

#include <fstream>

#include "engine/lone_denoiser.h"
#include "engine/request.h"
#include "plan/trace_model.h"
#include "tests/plan/stdit_xl.h"
#include "tests/support/golden.h"

namespace tessera::plan {
namespace {

// Elements of the weights that a rank holds in a phase of a run in fp32.
int64_t weights_of(const engine::Model& model, engine::Request request, Phase phase) {
  request.prompts = {"a cat"};
  request.dtype = at::kFloat;
  if (phase == Phase::kDenoise) request.output_type = engine::OutputType::kLatent;
  engine::Settings settings = engine::resolve(request, model);
  const parallel::Layout layout =
      parallel::resolve_layout({}, engine::workload(settings, model), std::nullopt);
  settings.request.device = at::kCUDA;  // which holds weights as they are in the file
  const RankTrace trace = trace_rank(settings, model, layout, 0, 1);
  return trace.weights_bytes.at(static_cast<size_t>(phase)) / static_cast<int64_t>(sizeof(float));
}

struct PublishedDenoiser {
  std::string name;
  const char* config;
  int64_t parameters;
  int64_t unread;       // parameters that no image needs
  int64_t besides = 0;  // what is held besides
};

constexpr const char* kPixart = R"({"_class_name": "PixArtTransformer2DModel", "num_layers": 28,
  "num_attention_heads": 16, "attention_head_dim": 72, "cross_attention_dim": 1152, "caption_channels": 4096,
  "sample_size": 128, "patch_size": 2, "in_channels": 4, "out_channels": 8, "norm_type": "ada_norm_single",
  "norm_elementwise_affine": false, "norm_eps": 1e-6, "interpolation_scale": 2,
  "use_additional_conditions": false, "attention_bias": true, "activation_fn": "gelu-approximate"})";
constexpr const char* kStableDiffusion = R"({"_class_name": "UNet2DConditionModel", "sample_size": 64,
  "block_out_channels": [320, 640, 1280, 1280], "attention_head_dim": 8, "cross_attention_dim": 768,
  "layers_per_block": 2, "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D",
  "CrossAttnDownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D",
  "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"]})";
constexpr const char* kStableDiffusionXl = R"({"_class_name": "UNet2DConditionModel", "sample_size": 128,
  "block_out_channels": [320, 640, 1280], "attention_head_dim": [5, 10, 20],
  "transformer_layers_per_block": [1, 2, 10], "cross_attention_dim": 2048, "use_linear_projection": true,
  "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
  "projection_class_embeddings_input_dim": 2816, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D",
  "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"]})";
constexpr const char* kStdit2 = R"({"architectures": ["STDiT2"], "depth": 28, "hidden_size": 1152,
  "num_heads": 16, "caption_channels": 4096, "model_max_length": 200, "patch_size": [1, 2, 2],
  "in_channels": 4, "pred_sigma": true, "qk_norm": true, "mlp_ratio": 4.0, "input_sq_size": 512})";
constexpr const char* kStdit3 = R"({"architectures": ["STDiT3"], "depth": 28, "hidden_size": 1152,
  "num_heads": 16, "caption_channels": 4096, "model_max_length": 300, "patch_size": [1, 2, 2],
  "in_channels": 4, "pred_sigma": true, "qk_norm": true, "mlp_ratio": 4.0, "input_sq_size": 512})";

constexpr const char* kZImage = R"({"_class_name": "ZImageTransformer2DModel", "all_patch_size": [2],
  "all_f_patch_size": [1], "in_channels": 16, "dim": 3840, "n_layers": 30, "n_refiner_layers": 2, "n_heads": 30,
  "n_kv_heads": 30, "norm_eps": 1e-5, "qk_norm": true, "cap_feat_dim": 2560, "rope_theta": 256.0,
  "t_scale": 1000.0, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512]})";

constexpr const char* kFlux2Klein4b = R"({"_class_name": "Flux2Transformer2DModel", "num_layers": 5,
  "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680, "guidance_embeds": false})";
constexpr const char* kFlux2Klein9b = R"({"_class_name": "Flux2Transformer2DModel", "num_layers": 8,
  "num_single_layers": 24, "num_attention_heads": 32, "joint_attention_dim": 12288, "guidance_embeds": false})";
constexpr const char* kFlux2Dev = R"({"_class_name": "Flux2Transformer2DModel"})";  // diffusers' defaults

// The rows of the last layer that give variances. PixArt and STDiT3 sample without them.
constexpr int64_t kVariances = 16 * 1152 + 16;
constexpr int64_t kRotaryFrequencies = 36;  // computed instead
// U-Nets hold the weights of upsamplers for odd sizes too.
constexpr int64_t upsampler(int64_t channels) {
  return 9 * channels * channels + channels;
}

std::vector<PublishedDenoiser> denoisers() {
  return {{"PixArtSigma", kPixart, 610'856'096, kVariances},
          {"StableDiffusion1_5", kStableDiffusion, 859'520'964, 0,
           upsampler(1280) + upsampler(1280) + upsampler(640)},
          {"StableDiffusionXL", kStableDiffusionXl, 2'567'463'684, 0, upsampler(1280) + upsampler(640)},
          // The text of unconditional samples is a buffer.
          {"OpenSora1_1", kStdit2, 767'452'100, kRotaryFrequencies, 200 * 4096},
          {"OpenSora1_2", kStdit3, 1'207'643'972, kVariances + kRotaryFrequencies, 300 * 4096},
          {"ZImage", kZImage, 6'154'908'736, 0},
          {"Flux2Klein4B", kFlux2Klein4b, 3'875'544'576, 0},
          {"Flux2Klein9B", kFlux2Klein9b, 9'078'581'248, 0},
          {"Flux2Dev", kFlux2Dev, 32'223'281'152, 0}};
}

class Parameters : public ::testing::TestWithParam<PublishedDenoiser> {};

TEST_P(Parameters, AreThoseOfThePublishedDenoiser) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << GetParam().config;
  const engine::Model model = engine::read_lone_denoiser(folder.path());
  engine::Request request;
  if (model.shape.is_video) {
    request.video.num_frames = 17;
    request.height = 144;
    request.width = 256;
  }
  EXPECT_EQ(weights_of(model, request, Phase::kDenoise),
            GetParam().parameters - GetParam().unread + GetParam().besides);
}

INSTANTIATE_TEST_SUITE_P(Models, Parameters, ::testing::ValuesIn(denoisers()),
                         [](const auto& info) { return info.param.name; });

// The decoders of both parts of Open-Sora's VAE with the convolutions before them and the scales of latents.
TEST_F(StditXl, HasThePublishedParametersOfTheVideoDecoder) {
  const std::filesystem::path file = temporary_.path() / "vae" / "config.json";
  Json config = read_json(file);
  for (const char* name : {"block_out_channels", "norm_num_groups"}) config["vae_2d"].erase(name);
  for (const char* name : {"filters", "num_groups"}) config["vae_temporal"].erase(name);
  std::ofstream(file) << config;
  engine::Request request;
  request.video.num_frames = 17;
  request.height = 144;
  request.width = 256;
  constexpr int64_t kSpatial = 49'490'179, kTemporal = 165'265'924, kConvolutions = 2 * (4 * 4 + 4);
  EXPECT_EQ(weights_of(engine::read_model(temporary_.path()), request, Phase::kDecode),
            kSpatial + kTemporal + kConvolutions + 2 * 4);
}

}  // namespace
}  // namespace tessera::plan
