#include "weights/single_file.h"

#include <gtest/gtest.h>

namespace tessera::weights {
namespace {

// Returns consecutive tensors of a file, of these names and shapes, with two bytes per element.
NamedTensors tensors_of(const std::vector<std::pair<std::string, std::vector<int64_t>>>& shapes) {
  NamedTensors result;
  uint64_t end = 0;
  for (const auto& [name, shape] : shapes) {
    uint64_t bytes = 2;
    for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
    result.emplace(name, NamedTensor{{at::kHalf, shape, end, end + bytes}});
    end += bytes;
  }
  return result;
}

std::vector<std::string> names(const NamedTensors& part) {
  std::vector<std::string> result;
  result.reserve(part.size());
  for (const auto& [name, tensor] : part) result.push_back(name);
  return result;
}

TEST(SingleFile, NumbersTheBlocksOfAUNet) {
  const std::string root = "model.diffusion_model.";
  const auto part = single_file_part(tensors_of({{root + "input_blocks.0.0.weight", {1}},
                                                 {root + "input_blocks.1.0.in_layers.0.weight", {1}},
                                                 {root + "input_blocks.1.0.emb_layers.1.bias", {1}},
                                                 {root + "input_blocks.2.0.op.weight", {1}},
                                                 {root + "input_blocks.3.0.out_layers.3.weight", {1}},
                                                 {root + "input_blocks.3.1.proj_in.weight", {1}},
                                                 {root + "middle_block.0.skip_connection.weight", {1}},
                                                 {root + "middle_block.1.norm.weight", {1}},
                                                 {root + "middle_block.2.in_layers.2.bias", {1}},
                                                 {root + "output_blocks.0.0.out_layers.0.weight", {1}},
                                                 {root + "output_blocks.0.1.proj_in.weight", {1}},
                                                 {root + "output_blocks.1.0.in_layers.0.weight", {1}},
                                                 {root + "output_blocks.1.1.proj_in.weight", {1}},
                                                 {root + "output_blocks.1.2.conv.weight", {1}},
                                                 {root + "output_blocks.2.0.in_layers.0.weight", {1}},
                                                 {root + "output_blocks.2.1.conv.bias", {1}},
                                                 {root + "output_blocks.3.0.in_layers.0.weight", {1}},
                                                 {root + "time_embed.2.weight", {1}},
                                                 {root + "time_embed.cond_proj.weight", {1}},
                                                 {root + "label_emb.0.2.bias", {1}},
                                                 {root + "out.0.weight", {1}},
                                                 {root + "out.2.weight", {1}},
                                                 {"model_ema.decay", {1}}}),
                                     "unet");
  EXPECT_EQ(names(part), (std::vector<std::string>{"add_embedding.linear_2.bias",
                                                   "conv_in.weight",
                                                   "conv_norm_out.weight",
                                                   "conv_out.weight",
                                                   "down_blocks.0.downsamplers.0.conv.weight",
                                                   "down_blocks.0.resnets.0.norm1.weight",
                                                   "down_blocks.0.resnets.0.time_emb_proj.bias",
                                                   "down_blocks.1.attentions.0.proj_in.weight",
                                                   "down_blocks.1.resnets.0.conv2.weight",
                                                   "mid_block.attentions.0.norm.weight",
                                                   "mid_block.resnets.0.conv_shortcut.weight",
                                                   "mid_block.resnets.1.conv1.bias",
                                                   "time_embedding.cond_proj.weight",
                                                   "time_embedding.linear_2.weight",
                                                   "up_blocks.0.attentions.0.proj_in.weight",
                                                   "up_blocks.0.attentions.1.proj_in.weight",
                                                   "up_blocks.0.resnets.0.norm2.weight",
                                                   "up_blocks.0.resnets.1.norm1.weight",
                                                   "up_blocks.0.upsamplers.0.conv.weight",
                                                   "up_blocks.1.resnets.0.norm1.weight",
                                                   "up_blocks.1.upsamplers.0.conv.bias",
                                                   "up_blocks.2.resnets.0.norm1.weight"}));
}

TEST(SingleFile, TurnsTheVaeDecoderRound) {
  const std::string root = "first_stage_model.";
  const auto part =
      single_file_part(tensors_of({{root + "decoder.mid.attn_1.q.weight", {8, 8, 1, 1}},
                                   {root + "decoder.mid.attn_1.norm.bias", {8}},
                                   {root + "decoder.up.0.block.0.nin_shortcut.weight", {4, 8, 1, 1}},
                                   {root + "decoder.up.1.upsample.conv.bias", {8}},
                                   {root + "encoder.down.0.downsample.conv.bias", {8}},
                                   {root + "encoder.down.1.block.0.conv1.bias", {8}},
                                   {root + "encoder.mid.block_2.norm2.bias", {8}},
                                   {root + "encoder.norm_out.bias", {8}},
                                   {root + "post_quant_conv.weight", {4, 4, 1, 1}}}),
                       "vae");
  EXPECT_EQ(
      names(part),
      (std::vector<std::string>{
          "decoder.mid_block.attentions.0.group_norm.bias", "decoder.mid_block.attentions.0.to_q.weight",
          "decoder.up_blocks.0.upsamplers.0.conv.bias", "decoder.up_blocks.1.resnets.0.conv_shortcut.weight",
          "encoder.conv_norm_out.bias", "encoder.down_blocks.0.downsamplers.0.conv.bias",
          "encoder.down_blocks.1.resnets.0.conv1.bias", "encoder.mid_block.resnets.1.norm2.bias",
          "post_quant_conv.weight"}));
  EXPECT_EQ(part.at("decoder.mid_block.attentions.0.to_q.weight").entry.shape, (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(part.at("decoder.up_blocks.1.resnets.0.conv_shortcut.weight").entry.shape,
            (std::vector<int64_t>{4, 8, 1, 1}));
}

TEST(SingleFile, CutsQueriesKeysAndValuesOfOpenClip) {
  const std::string root = "conditioner.embedders.1.model.";
  const auto file =
      tensors_of({{root + "transformer.resblocks.0.attn.in_proj_weight", {12, 4}},
                  {root + "transformer.resblocks.0.mlp.c_fc.bias", {16}},
                  {root + "positional_embedding", {77, 4}},
                  {root + "text_projection", {4, 6}},
                  {"conditioner.embedders.0.transformer.text_model.final_layer_norm.bias", {4}}});
  const auto second = single_file_part(file, "text_encoder_2");
  EXPECT_EQ(names(second),
            (std::vector<std::string>{
                "text_model.embeddings.position_embedding.weight", "text_model.encoder.layers.0.mlp.fc1.bias",
                "text_model.encoder.layers.0.self_attn.k_proj.weight",
                "text_model.encoder.layers.0.self_attn.q_proj.weight",
                "text_model.encoder.layers.0.self_attn.v_proj.weight", "text_projection.weight"}));
  const TensorEntry& keys = second.at("text_model.encoder.layers.0.self_attn.k_proj.weight").entry;
  EXPECT_EQ(keys.shape, (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(keys.begin, 4U * 4 * 2);
  EXPECT_EQ(keys.end, 2U * 4 * 4 * 2);
  EXPECT_TRUE(second.at("text_projection.weight").is_transposed);
  EXPECT_EQ(second.at("text_projection.weight").entry.shape, (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(names(single_file_part(file, "text_encoder")),
            (std::vector<std::string>{"text_model.final_layer_norm.bias"}));
}

TEST(SingleFile, HasNothingOfOtherModels) {
  const auto file = tensors_of({{"transformer_blocks.0.attn1.to_q.weight", {4, 4}}, {"in_proj_weight", {}}});
  for (const char* part : {"unet", "vae", "text_encoder", "text_encoder_2", "transformer"})
    EXPECT_TRUE(single_file_part(file, part).empty()) << part;
  // Tensors whose shapes cannot be cut stay as they are, and their readers refuse them.
  const auto odd =
      tensors_of({{"conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj_bias", {}},
                  {"conditioner.embedders.1.model.text_projection", {}}});
  EXPECT_TRUE(single_file_part(odd, "text_encoder_2").at("text_projection.weight").entry.shape.empty());
}

// The text encoder of 1.x has the names of transformers, that of 2.x those of open_clip.
TEST(SingleFile, KnowsTheTextEncodersOfEachRelease) {
  const std::string layer = "text_model.encoder.layers.0.layer_norm1.bias";
  EXPECT_EQ(
      names(single_file_part(tensors_of({{"cond_stage_model.transformer." + layer, {4}}}), "text_encoder")),
      std::vector<std::string>{layer});
  EXPECT_EQ(
      names(single_file_part(tensors_of({{"cond_stage_model.model.transformer.resblocks.0.ln_1.bias", {4}}}),
                             "text_encoder")),
      std::vector<std::string>{layer});
}

}  // namespace
}  // namespace tessera::weights
