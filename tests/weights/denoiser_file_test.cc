#include "weights/denoiser_file.h"

#include <gtest/gtest.h>

#include <tuple>

#include "core/error.h"
#include "weights/single_file.h"

namespace tessera::weights {
namespace {

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

// Tensors of a file, one behind the other, with two bytes per number.
TensorFileHeader file_of(const Shapes& shapes, const std::string& prefix = "") {
  TensorFileHeader header;
  uint64_t end = 0;
  for (const auto& [name, shape] : shapes) {
    uint64_t bytes = 2;
    for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
    header.tensors.emplace(prefix + name, TensorEntry{at::kHalf, shape, end, end + bytes});
    end += bytes;
  }
  return header;
}

NamedTensors renamed(const TensorFileHeader& header) {
  NamedTensors tensors;
  for (const auto& [name, entry] : header.tensors) tensors.emplace(name, NamedTensor{entry});
  return denoiser_tensors(tensors);
}

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

const Shapes kOfZImage = {{"x_pad_token", {4}},
                          {"cap_pad_token", {1, 4}},
                          {"x_embedder.bias", {4}},
                          {"final_layer.adaLN_modulation.1.weight", {4, 4}},
                          {"cap_embedder.0.weight", {4}},
                          {"norm_final.weight", {4}},
                          {"layers.11.attention.qkv.weight", {6, 4}},
                          {"layers.11.attention.out.weight", {4, 2}},
                          {"noise_refiner.0.attention.q_norm.weight", {2}},
                          {"context_refiner.1.attention.k_norm.weight", {2}},
                          {"context_refiner.1.feed_forward.w1.weight", {2, 2}},
                          {"layers.0.attention.x.qkv.weight", {3, 1}}};

TEST(DenoiserFile, NamesOfZImage) {
  for (const char* prefix : {"", "model.diffusion_model.", "diffusion_model."}) {
    const TensorFileHeader file = file_of(kOfZImage, prefix);
    ASSERT_TRUE(recognise(file));
    EXPECT_EQ(recognise(file)->class_name, "ZImageTransformer2DModel");
    const NamedTensors tensors = renamed(file);
    EXPECT_EQ(names_of(tensors),
              (std::vector<std::string>{
                  "all_final_layer.2-1.adaLN_modulation.1.weight", "all_x_embedder.2-1.bias",
                  "cap_embedder.0.weight", "cap_pad_token", "context_refiner.1.attention.norm_k.weight",
                  "context_refiner.1.feed_forward.w1.weight", "layers.0.attention.x.qkv.weight",
                  "layers.11.attention.to_k.weight", "layers.11.attention.to_out.0.weight",
                  "layers.11.attention.to_q.weight", "layers.11.attention.to_v.weight",
                  "noise_refiner.0.attention.norm_q.weight", "x_pad_token"}));
    const TensorEntry& keys = tensors.at("layers.11.attention.to_k.weight").entry;
    const TensorEntry& all = file.tensors.at(std::string(prefix) + "layers.11.attention.qkv.weight");
    EXPECT_EQ(keys.shape, (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(keys.begin, all.begin + 16);
    EXPECT_EQ(keys.end, all.begin + 32);
    EXPECT_EQ(tensors.at("x_pad_token").entry.shape, (std::vector<int64_t>{1, 4}));
    EXPECT_EQ(tensors.at("cap_pad_token").entry.shape, (std::vector<int64_t>{1, 4}));
    EXPECT_FALSE(tensors.at("all_final_layer.2-1.adaLN_modulation.1.weight").has_halves_swapped);
  }
}

TEST(DenoiserFile, NamesOfFlux2) {
  const TensorFileHeader file = file_of({{"double_stream_modulation_img.lin.weight", {2, 2}},
                                         {"double_stream_modulation_txt.lin.weight", {2, 2}},
                                         {"single_stream_modulation.lin.weight", {2, 2}},
                                         {"img_in.weight", {2, 2}},
                                         {"txt_in.weight", {2, 2}},
                                         {"time_in.in_layer.weight", {2, 2}},
                                         {"guidance_in.out_layer.weight", {2, 2}},
                                         {"double_blocks.0.img_attn.qkv.weight", {6, 2}},
                                         {"double_blocks.0.txt_attn.qkv.weight", {6, 2}},
                                         {"double_blocks.0.img_attn.norm.query_norm.scale", {2}},
                                         {"double_blocks.0.txt_attn.norm.key_norm.weight", {2}},
                                         {"double_blocks.0.img_attn.proj.weight", {2, 2}},
                                         {"double_blocks.0.txt_attn.proj.weight", {2, 2}},
                                         {"double_blocks.0.img_mlp.0.weight", {2, 2}},
                                         {"double_blocks.0.txt_mlp.2.weight", {2, 2}},
                                         {"single_blocks.19.linear1.weight", {2, 2}},
                                         {"single_blocks.19.linear2.weight", {2, 2}},
                                         {"single_blocks.19.norm.key_norm.scale", {2}},
                                         {"final_layer.linear.weight", {2, 2}},
                                         {"final_layer.adaLN_modulation.1.weight", {4, 2}},
                                         {"vae.x", {1}}},
                                        "model.diffusion_model.");
  ASSERT_TRUE(recognise(file));
  EXPECT_EQ(recognise(file)->class_name, "Flux2Transformer2DModel");
  const NamedTensors tensors = renamed(file);
  EXPECT_EQ(names_of(tensors),
            (std::vector<std::string>{"context_embedder.weight",
                                      "double_stream_modulation_img.linear.weight",
                                      "double_stream_modulation_txt.linear.weight",
                                      "norm_out.linear.weight",
                                      "proj_out.weight",
                                      "single_stream_modulation.linear.weight",
                                      "single_transformer_blocks.19.attn.norm_k.weight",
                                      "single_transformer_blocks.19.attn.to_out.weight",
                                      "single_transformer_blocks.19.attn.to_qkv_mlp_proj.weight",
                                      "time_guidance_embed.guidance_embedder.linear_2.weight",
                                      "time_guidance_embed.timestep_embedder.linear_1.weight",
                                      "transformer_blocks.0.attn.add_k_proj.weight",
                                      "transformer_blocks.0.attn.add_q_proj.weight",
                                      "transformer_blocks.0.attn.add_v_proj.weight",
                                      "transformer_blocks.0.attn.norm_added_k.weight",
                                      "transformer_blocks.0.attn.norm_q.weight",
                                      "transformer_blocks.0.attn.to_add_out.weight",
                                      "transformer_blocks.0.attn.to_k.weight",
                                      "transformer_blocks.0.attn.to_out.0.weight",
                                      "transformer_blocks.0.attn.to_q.weight",
                                      "transformer_blocks.0.attn.to_v.weight",
                                      "transformer_blocks.0.ff.linear_in.weight",
                                      "transformer_blocks.0.ff_context.linear_out.weight",
                                      "vae.x",
                                      "x_embedder.weight"}));
  for (const auto& [name, tensor] : tensors)
    EXPECT_EQ(tensor.has_halves_swapped, name == "norm_out.linear.weight") << name;
}

// Files that others saved with diffusers' names.
TEST(DenoiserFile, NamesOfDiffusersStay) {
  for (const Shapes& shapes : {Shapes{{"x_pad_token", {1, 4}},
                                      {"all_x_embedder.2-1.weight", {4, 4}},
                                      {"all_final_layer.2-1.linear.weight", {4, 4}},
                                      {"layers.0.attention.to_out.0.weight", {4, 4}}},
                               Shapes{{"double_stream_modulation_img.linear.weight", {2, 2}},
                                      {"x_embedder.weight", {2, 2}},
                                      {"norm_out.linear.weight", {4, 2}},
                                      {"transformer_blocks.0.attn.to_q.weight", {2, 2}}}}) {
    const TensorFileHeader file = file_of(shapes);
    const NamedTensors tensors = renamed(file);
    ASSERT_EQ(tensors.size(), shapes.size());
    for (const auto& [name, shape] : shapes) {
      EXPECT_EQ(tensors.at(name).entry.shape, shape);
      EXPECT_FALSE(tensors.at(name).has_halves_swapped);
    }
  }
}

TEST(DenoiserFile, OthersAreKnownByName) {
  for (const auto& [key, title] : {std::pair("double_blocks.0.img_mod.lin.weight", "FLUX.1"),
                                   {"cap_embedder.1.weight", "Lumina"},
                                   {"model.diffusion_model.input_blocks.0.0.weight", "Stable Diffusion"}}) {
    const TensorFileHeader file = file_of({{key, {2}}, {"x", {2}}});
    ASSERT_TRUE(recognise(file)) << key;
    EXPECT_EQ(recognise(file)->title, title);
    EXPECT_TRUE(renamed(file).empty());
    EXPECT_TRUE(is_in_single_file(file, "vae"));
  }
  EXPECT_EQ(recognise(file_of({{"x", {2}}})), nullptr);
  const TensorFileHeader known = file_of(kOfZImage);
  EXPECT_TRUE(is_in_single_file(known, "transformer"));
  EXPECT_FALSE(is_in_single_file(known, "vae"));
  EXPECT_FALSE(is_in_single_file(known, "text_encoder"));
}

TEST(DenoiserFile, OriginalNames) {
  const std::string prefix = "model.diffusion_model.";
  for (const auto& [file, key, original] :
       std::vector<std::tuple<TensorFileHeader, std::string, std::string>>{
           {file_of(kOfZImage), "layers.3.attention.to_k.weight", "layers.3.attention.qkv.weight"},
           {file_of(kOfZImage), "all_final_layer.2-1.linear.bias", "final_layer.linear.bias"},
           {file_of(kOfZImage), "cap_embedder.1.weight", ""},
           {file_of(kOfZImage, prefix), "cap_embedder.1.weight", prefix + "cap_embedder.1.weight"},
           {file_of({{"double_stream_modulation_img.lin.weight", {2}}}, prefix),
            "transformer_blocks.7.attn.add_v_proj.weight", prefix + "double_blocks.7.txt_attn.qkv.weight"},
           {file_of({{"double_stream_modulation_img.lin.weight", {2}}}),
            "single_transformer_blocks.1.attn.norm_q.weight", "single_blocks.1.norm.query_norm.*"},
           {file_of({{"double_stream_modulation_img.linear.weight", {2}}}), "x_embedder.weight", ""},
           {file_of({{"x", {2}}}), "x_embedder.weight", ""}})
    EXPECT_EQ(original_name(file, key), original) << key;
}

TEST(DenoiserFile, TwoTensorsOfOneNameAreRefused) {
  Shapes shapes = kOfZImage;
  shapes.push_back({"layers.11.attention.to_k.weight", {2, 4}});
  try {
    renamed(file_of(shapes));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_NE(std::string(error.what()).find("another tensor is 'layers.11.attention.to_k.weight' too"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::weights
