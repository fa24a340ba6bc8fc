// A PixArt transformer of random weights, each of which affects the result, and its inputs.
#pragma once

#include <ATen/Functions.h>

#include <map>
#include <string>
#include <vector>

#include "core/json.h"
#include "models/pixart.h"
#include "tests/support/checkpoint_fixture.h"

namespace tessera {

class RandomPixArt {
 public:
  RandomPixArt(int64_t heads, int64_t blocks)
      : heads_(heads), blocks_(blocks), fixture_(tensors(heads * kHeadSize, blocks)) {}

  static constexpr int64_t kHeadSize = 8, kCaption = 12;

  models::PixArtConfig config() const {
    const Json json = {{"num_attention_heads", heads_},
                       {"attention_head_dim", kHeadSize},
                       {"num_layers", blocks_},
                       {"in_channels", 4},
                       {"out_channels", 8},
                       {"sample_size", 32},
                       {"patch_size", 2},
                       {"cross_attention_dim", heads_ * kHeadSize},
                       {"caption_channels", kCaption},
                       {"norm_type", "ada_norm_single"},
                       {"use_additional_conditions", false}};
    return models::PixArtConfig(JsonConfig(json, "config.json"));
  }

  // Each call reads the file anew, because the ranks that call it are threads.
  std::unique_ptr<models::PixArtTransformer> load(const weights::Placement& placement,
                                                  std::optional<Range> blocks = {}) const {
    weights::Checkpoint checkpoint(fixture_.folder(), weights::Library::kTransformers);
    return std::make_unique<models::PixArtTransformer>(weights::Scope(checkpoint, placement), config(),
                                                       models::LocalBlocks(blocks_, blocks));
  }

  const CheckpointFixture& fixture() const { return fixture_; }
  models::DenoiserShape shape() const { return {.heads = heads_, .blocks = blocks_, .patch = {1, 2, 2}}; }

 private:
  static std::map<std::string, at::Tensor> tensors(int64_t width, int64_t blocks) {
    std::map<std::string, at::Tensor> all;
    auto generator = at::detail::createCPUGenerator(17);
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      // Attention is sharp, so that reading wrong keys changes the result.
      const bool sharp = name.find("to_q") != std::string::npos || name.find("to_k") != std::string::npos;
      const double scale =
          shape.size() > 1 ? (sharp ? 3 : 1) / std::sqrt(static_cast<double>(shape[1])) : 0.1;
      all[name] = at::randn(shape, generator) * scale;
    };
    const auto add_linear = [&](const std::string& name, int64_t in, int64_t out) {
      add(name + ".weight", {out, in});
      add(name + ".bias", {out});
    };
    add("pos_embed.proj.weight", {width, 4, 2, 2});
    add("pos_embed.proj.bias", {width});
    add_linear("adaln_single.emb.timestep_embedder.linear_1", 256, width);
    add_linear("adaln_single.emb.timestep_embedder.linear_2", width, width);
    add_linear("adaln_single.linear", width, 6 * width);
    add_linear("caption_projection.linear_1", kCaption, width);
    add_linear("caption_projection.linear_2", width, width);
    for (int64_t i = 0; i < blocks; ++i) {
      const std::string block = fmt::format("transformer_blocks.{}.", i);
      add(block + "scale_shift_table", {6, width});
      for (const std::string attention : {"attn1.", "attn2."}) {
        for (const std::string part : {"to_q", "to_k", "to_v", "to_out.0"})
          add_linear(fmt::format("{}{}{}", block, attention, part), width, width);
      }
      add_linear(block + "ff.net.0.proj", width, 4 * width);
      add_linear(block + "ff.net.2", 4 * width, width);
    }
    add("scale_shift_table", {2, width});
    add_linear("proj_out", width, int64_t{2} * 2 * 8);
    return all;
  }

  int64_t heads_, blocks_;
  CheckpointFixture fixture_;
};

}  // namespace tessera
