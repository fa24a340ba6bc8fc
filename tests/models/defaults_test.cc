// Options that a config.json lacks have the values of tests/golden/defaults.json, which are those of the
// constructors in diffusers and transformers.
#include <gtest/gtest.h>

#include <functional>

#include "models/autoencoder_kl.h"
#include "models/autoencoder_kl_flux2.h"
#include "models/clip.h"
#include "models/flux2.h"
#include "models/pixart.h"
#include "models/qwen3.h"
#include "models/stdit/config.h"
#include "models/stdit/video_vae.h"
#include "models/t5.h"
#include "models/unet_2d_condition.h"
#include "models/z_image.h"
#include "tests/support/golden.h"

namespace tessera::models {
namespace {

// What a configuration says, under the names of its options.
Json fields(const AutoencoderKLConfig& c) {
  return {{"in_channels", c.in_channels},
          {"out_channels", c.out_channels},
          {"latent_channels", c.latent_channels},
          {"block_out_channels", c.block_out_channels},
          {"layers_per_block", c.layers_per_block},
          {"norm_num_groups", c.norm_num_groups},
          {"sample_size", c.sample_size},
          {"scaling_factor", c.scaling_factor},
          {"shift_factor", c.shift_factor},
          {"latents_mean", c.latents_mean},
          {"latents_std", c.latents_std},
          {"use_quant_conv", c.use_quant_conv},
          {"use_post_quant_conv", c.use_post_quant_conv},
          {"mid_block_add_attention", c.mid_block_add_attention},
          {"force_upcast", c.force_upcast}};
}

Json fields(const AutoencoderKLFlux2Config& c) {
  return {{"in_channels", c.decoder.in_channels},
          {"out_channels", c.decoder.out_channels},
          {"latent_channels", c.decoder.latent_channels},
          {"block_out_channels", c.decoder.block_out_channels},
          {"layers_per_block", c.decoder.layers_per_block},
          {"norm_num_groups", c.decoder.norm_num_groups},
          {"sample_size", c.decoder.sample_size},
          {"use_quant_conv", c.decoder.use_quant_conv},
          {"use_post_quant_conv", c.decoder.use_post_quant_conv},
          {"mid_block_add_attention", c.decoder.mid_block_add_attention},
          {"batch_norm_eps", c.batch_norm_eps}};
}

Json fields(const Flux2Config& c) {
  return {{"in_channels", c.in_channels},
          {"num_layers", c.num_layers},
          {"num_single_layers", c.num_single_layers},
          {"attention_head_dim", c.attention_head_dim},
          {"num_attention_heads", c.num_attention_heads},
          {"joint_attention_dim", c.joint_attention_dim},
          {"timestep_guidance_channels", c.timestep_guidance_channels},
          {"mlp_ratio", c.mlp_ratio},
          {"axes_dims_rope", c.axes_dims_rope},
          {"rope_theta", c.rope_theta},
          {"eps", c.eps},
          {"guidance_embeds", c.guidance_embeds}};
}

Json fields(const PixArtConfig& c) {
  return {{"num_attention_heads", c.num_attention_heads},
          {"attention_head_dim", c.attention_head_dim},
          {"num_layers", c.num_layers},
          {"in_channels", c.in_channels},
          {"out_channels", c.out_channels},
          {"sample_size", c.sample_size},
          {"patch_size", c.patch_size},
          {"cross_attention_dim", c.cross_attention_dim},
          {"caption_channels", c.caption_channels},
          {"interpolation_scale", c.interpolation_scale},
          {"norm_eps", c.norm_eps},
          {"attention_bias", c.attention_bias},
          {"use_additional_conditions", c.use_additional_conditions}};
}

Json fields(const CLIPTextConfig& c) {
  return {{"vocab_size", c.vocab_size},
          {"hidden_size", c.hidden_size},
          {"intermediate_size", c.intermediate_size},
          {"num_hidden_layers", c.num_hidden_layers},
          {"num_attention_heads", c.num_attention_heads},
          {"max_position_embeddings", c.max_position_embeddings},
          {"projection_dim", c.projection_dim},
          {"eos_token_id", c.eos_token_id},
          {"layer_norm_eps", c.layer_norm_eps},
          {"hidden_act", c.quick_gelu ? "quick_gelu" : "gelu"}};
}

Json fields(const T5Config& c) {
  return {{"vocab_size", c.vocab_size},
          {"d_model", c.d_model},
          {"d_kv", c.d_kv},
          {"d_ff", c.d_ff},
          {"num_heads", c.num_heads},
          {"num_layers", c.num_layers},
          {"relative_attention_num_buckets", c.relative_attention_num_buckets},
          {"relative_attention_max_distance", c.relative_attention_max_distance},
          {"layer_norm_epsilon", c.layer_norm_epsilon},
          {"feed_forward_proj", !c.gated && c.activation == ops::Activation::kRelu ? "relu" : "another"}};
}

Json fields(const Qwen3Config& c) {
  return {{"vocab_size", c.vocab_size},
          {"hidden_size", c.hidden_size},
          {"intermediate_size", c.intermediate_size},
          {"num_hidden_layers", c.num_hidden_layers},
          {"num_attention_heads", c.num_attention_heads},
          {"num_key_value_heads", c.num_key_value_heads},
          {"head_dim", c.head_dim},
          {"rms_norm_eps", c.rms_norm_eps}};
}

Json fields(const ZImageConfig& c) {
  return {{"in_channels", c.in_channels}, {"dim", c.dim},
          {"n_layers", c.n_layers},       {"n_refiner_layers", c.n_refiner_layers},
          {"n_heads", c.n_heads},         {"cap_feat_dim", c.cap_feat_dim},
          {"norm_eps", c.norm_eps},       {"rope_theta", c.rope_theta},
          {"t_scale", c.t_scale},         {"qk_norm", c.qk_norm},
          {"axes_dims", c.axes_dims},     {"axes_lens", c.axes_lens}};
}

Json fields(const UNet2DConfig& c) {
  Json channels, layers, heads, contexts, down, up;
  for (const UNet2DConfig::Level& level : c.levels) {
    channels.push_back(level.channels);
    layers.push_back(level.layers);
    heads.push_back(level.heads);
    contexts.push_back(level.context_width);
    down.push_back(level.down_transformers);
    up.push_back(level.up_transformers);
  }
  return {{"block_out_channels", channels},
          {"layers_per_block", layers},
          {"attention_head_dim", heads},
          {"cross_attention_dim", contexts},
          {"down_block_types", down},
          {"up_block_types", up},
          {"mid_block_type", {c.has_mid_block, c.mid_transformers, c.mid_heads}},
          {"in_channels", c.in_channels},
          {"out_channels", c.out_channels},
          {"sample_size", c.sample_size},
          {"norm_num_groups", c.norm_groups},
          {"norm_eps", c.norm_eps},
          {"use_linear_projection", c.use_linear_projection},
          {"addition_time_embed_dim", c.addition_time_embed_dim},
          {"projection_class_embeddings_input_dim", c.addition_inputs},
          {"time_cond_proj_dim", c.time_cond_proj_dim}};
}

Json fields(const STDiTConfig& c) {
  return {{"depth", c.depth},
          {"hidden_size", c.hidden_size},
          {"num_heads", c.num_heads},
          {"in_channels", c.in_channels},
          {"caption_channels", c.caption_channels},
          {"model_max_length", c.model_max_length},
          {"input_sq_size", c.input_sq_size},
          {"mlp_ratio", static_cast<double>(c.mlp_width) / static_cast<double>(c.hidden_size)},
          {"pred_sigma", c.pred_sigma},
          {"qk_norm", c.qk_norm},
          {"qk_norm_legacy", c.qk_norm_legacy}};
}

Json fields(const VideoVaeConfig& c) {
  return {{"vae_2d", fields(c.spatial)},
          {"vae_temporal",
           {{"in_out_channels", c.temporal.in_out_channels},
            {"latent_embed_dim", c.temporal.latent_embed_dim},
            {"embed_dim", c.temporal.embed_dim},
            {"filters", c.temporal.filters},
            {"num_res_blocks", c.temporal.num_res_blocks},
            {"num_groups", c.temporal.norm_groups},
            {"channel_multipliers", c.temporal.channel_multipliers},
            {"temporal_downsample", c.temporal.temporal_downsample}}},
          {"micro_frame_size", c.clip},
          {"micro_batch_size", c.micro_batch}};
}

// `expected` are the fields that differ from the options that are given.
template <typename Config>
void expect_fields(const Json& options, const Json& expected) {
  Json whole = fields(Config(JsonConfig(options, "config.json")));
  const Json given = whole;
  for (const auto& [key, value] : whole.items())
    EXPECT_EQ(value, expected.contains(key) ? expected.at(key) : options.at(key)) << key;
  for (const auto& [key, value] : options.items()) {
    Json without = options;
    without.erase(key);
    EXPECT_EQ(fields(Config(JsonConfig(without, "config.json"))), given) << "without " << key;
  }
}

Json defaults_of(const std::string& class_name) {
  return JsonConfig::read(golden_folder("defaults.json")).values().at(class_name);
}

TEST(ModelDefaults, AutoencoderKL) {
  expect_fields<AutoencoderKLConfig>(
      defaults_of("AutoencoderKL"),
      {{"shift_factor", 0}, {"latents_mean", Json::array()}, {"latents_std", Json::array()}});
}

TEST(ModelDefaults, AutoencoderKLFlux2) {
  expect_fields<AutoencoderKLFlux2Config>(defaults_of("AutoencoderKLFlux2"), Json::object());
}

TEST(ModelDefaults, Flux2) {
  expect_fields<Flux2Config>(defaults_of("Flux2Transformer2DModel"), Json::object());
}

TEST(ModelDefaults, CLIP) {
  expect_fields<CLIPTextConfig>(defaults_of("CLIPTextConfig"), Json::object());
}

TEST(ModelDefaults, T5) {
  expect_fields<T5Config>(defaults_of("T5Config"), Json::object());
}

TEST(ModelDefaults, Qwen3) {
  expect_fields<Qwen3Config>(defaults_of("Qwen3Config"), Json::object());
}

TEST(ModelDefaults, ZImage) {
  expect_fields<ZImageConfig>(defaults_of("ZImageTransformer2DModel"), Json::object());
}

// Where the file says nothing or null, two options follow from sample_size.
TEST(ModelDefaults, PixArt) {
  Json options = defaults_of("PixArtTransformer2DModel");
  for (const auto& [size, scale] : {std::pair{128, 2}, {256, 4}, {64, 1}, {63, 1}, {127, 1}, {1, 1}}) {
    SCOPED_TRACE(size);
    const Json chosen = {
        {"interpolation_scale", scale}, {"use_additional_conditions", size == 128}, {"caption_channels", 0}};
    if (size == 128) {
      expect_fields<PixArtConfig>(options, chosen);
    } else {
      options["sample_size"] = size;
      Json found = fields(PixArtConfig(JsonConfig(options, "config.json")));
      for (const auto& [key, value] : chosen.items()) EXPECT_EQ(found.at(key), value) << key;
    }
  }
}

TEST(ModelDefaults, UNet2DCondition) {
  Json expected = {{"layers_per_block", {2, 2, 2, 2}},
                   {"attention_head_dim", {8, 8, 8, 8}},
                   {"cross_attention_dim", {1280, 1280, 1280, 1280}},
                   {"down_block_types", {1, 1, 1, 0}},
                   {"up_block_types", {1, 1, 1, 0}},
                   {"mid_block_type", {true, 1, 8}},
                   {"sample_size", 64},  // StableDiffusionPipeline's
                   {"addition_time_embed_dim", 0},
                   {"projection_class_embeddings_input_dim", 0},
                   {"time_cond_proj_dim", 0}};
  expect_fields<UNet2DConfig>(defaults_of("UNet2DConditionModel"), expected);
}

// Those of STDiT3Config of Open-Sora 1.2.
TEST(ModelDefaults, STDiT) {
  expect_fields<STDiTConfig>({{"depth", 28},
                              {"hidden_size", 1152},
                              {"num_heads", 16},
                              {"in_channels", 4},
                              {"caption_channels", 4096},
                              {"model_max_length", 300},
                              {"input_sq_size", 512},
                              {"mlp_ratio", 4},
                              {"pred_sigma", true},
                              {"qk_norm", true},
                              {"qk_norm_legacy", false},
                              {"patch_size", {1, 2, 2}},
                              {"skip_y_embedder", false}},
                             Json::object());
}

// Those of OpenSoraVAE_V1_2, whose two-dimensional VAE is that of Stable Diffusion XL.
TEST(ModelDefaults, VideoVae) {
  const Json temporal = {{"in_out_channels", 4},
                         {"latent_embed_dim", 4},
                         {"embed_dim", 4},
                         {"filters", 128},
                         {"num_res_blocks", 4},
                         {"num_groups", 32},
                         {"channel_multipliers", {1, 2, 2, 4}},
                         {"temporal_downsample", {false, true, true}}};
  Json spatial = defaults_of("AutoencoderKL");
  spatial.update(
      {{"block_out_channels", {128, 256, 512, 512}}, {"layers_per_block", 2}, {"sample_size", 1024}});
  for (const char* key : {"down_block_types", "up_block_types"})
    spatial.erase(key);  // follow from the channels
  Json options = {{"model_type", "VideoAutoencoderPipeline"},
                  {"micro_frame_size", 17},
                  {"vae_2d", spatial},
                  {"vae_temporal", temporal}};
  options["vae_2d"].update({{"type", "VideoAutoencoderKL"}, {"micro_batch_size", 4}});
  options["vae_temporal"]["type"] = "VAE_Temporal_SD";
  const auto read = [](const Json& json) {
    return fields(read_video_vae_config(JsonConfig(json, "config.json")));
  };
  const Json whole = read(options);
  EXPECT_EQ(whole.at("vae_temporal"), temporal);
  EXPECT_EQ(whole.at("micro_frame_size"), 17);
  EXPECT_EQ(whole.at("micro_batch_size"), 4);
  for (const auto& [key, value] : whole.at("vae_2d").items()) {
    if (!spatial.at(key).is_null()) {
      EXPECT_EQ(value, spatial.at(key)) << key;
    }
  }
  const Json flat = options.flatten();
  for (const auto& [path, value] : flat.items()) {
    const Json::json_pointer place(path), parent = place.parent_pointer();
    if (options.at(parent).is_array()) continue;
    Json without = options;
    without.at(parent).erase(place.back());
    EXPECT_EQ(read(without), whole) << "without " << path;
  }
  for (const auto& [part, key] : {std::pair{"vae_2d", "block_out_channels"},
                                  {"vae_temporal", "channel_multipliers"},
                                  {"vae_temporal", "temporal_downsample"}}) {
    Json without = options;
    without.at(part).erase(key);
    EXPECT_EQ(read(without), whole) << "without " << key;
  }
}

}  // namespace
}  // namespace tessera::models
