#include "weights/single_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "weights/denoiser_file.h"

namespace tessera::weights {
namespace {

using Names = std::vector<std::pair<std::string_view, std::string_view>>;  // the file's name, diffusers' name

// Renames the tensors of a file by prefix.
class Renamer {
 public:
  explicit Renamer(const NamedTensors& tensors) : tensors_(tensors) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }
  bool has_prefix(const std::string& prefix) const {
    const auto place = tensors_.lower_bound(prefix);
    return place != tensors_.end() && place->first.starts_with(prefix);
  }

  // Renames all tensors `from`* to `to`*; the beginning of the rest of a name is translated by `inner`.
  void move(const std::string& from, const std::string& to, const Names& inner = {}) {
    for (auto place = tensors_.lower_bound(from); place != tensors_.end() && place->first.starts_with(from);
         ++place) {
      std::string rest = place->first.substr(from.size());
      for (const auto& [old_name, name] : inner) {
        if (!rest.starts_with(old_name)) continue;
        rest = std::string(name) + rest.substr(old_name.size());
        break;
      }
      result.emplace(to + rest, place->second);
    }
  }

  // Renames one tensor and modifies it by `change`.
  template <typename Change>
  void move_one(const std::string& from, const std::string& to, const Change& change) {
    const auto place = tensors_.find(from);
    if (place == tensors_.end()) return;
    NamedTensor named = place->second;
    change(named);
    result.emplace(to, std::move(named));
  }

  NamedTensors result;

 private:
  const NamedTensors& tensors_;
};

const Names kUNetResnet = {{"in_layers.0", "norm1"},          {"in_layers.2", "conv1"},
                           {"emb_layers.1", "time_emb_proj"}, {"out_layers.0", "norm2"},
                           {"out_layers.3", "conv2"},         {"skip_connection", "conv_shortcut"}};

void rename_unet(Renamer& names) {
  const std::string root = "model.diffusion_model.";
  const Names linears = {{"0.0", "linear_1"}, {"0.2", "linear_2"}};
  names.move(root + "time_embed.", "time_embedding.", {{"0", "linear_1"}, {"2", "linear_2"}});
  names.move(root + "label_emb.", "add_embedding.", linears);
  names.move(root + "out.", "", {{"0", "conv_norm_out"}, {"2", "conv_out"}});
  names.move(root + "input_blocks.0.0.", "conv_in.");
  int64_t level = 0, layer = 0;
  for (int64_t i = 1; names.has_prefix(fmt::format("{}input_blocks.{}.", root, i)); ++i) {
    const std::string from = fmt::format("{}input_blocks.{}.", root, i);
    const std::string block = fmt::format("down_blocks.{}.", level);
    if (names.has_prefix(from + "0.op.")) {
      names.move(from + "0.op.", block + "downsamplers.0.conv.");
      ++level, layer = 0;
      continue;
    }
    names.move(from + "0.", fmt::format("{}resnets.{}.", block, layer), kUNetResnet);
    names.move(from + "1.", fmt::format("{}attentions.{}.", block, layer));
    ++layer;
  }
  names.move(root + "middle_block.0.", "mid_block.resnets.0.", kUNetResnet);
  names.move(root + "middle_block.1.", "mid_block.attentions.0.");
  names.move(root + "middle_block.2.", "mid_block.resnets.1.", kUNetResnet);
  level = layer = 0;
  for (int64_t i = 0; names.has_prefix(fmt::format("{}output_blocks.{}.", root, i)); ++i) {
    const std::string from = fmt::format("{}output_blocks.{}.", root, i);
    const std::string block = fmt::format("up_blocks.{}.", level);
    names.move(from + "0.", fmt::format("{}resnets.{}.", block, layer), kUNetResnet);
    const bool has_attention = names.has(from + "1.proj_in.weight");
    if (has_attention) names.move(from + "1.", fmt::format("{}attentions.{}.", block, layer));
    ++layer;
    const std::string upsampler = from + (has_attention ? "2.conv." : "1.conv.");
    if (!names.has_prefix(upsampler)) continue;
    names.move(upsampler, block + "upsamplers.0.conv.");
    ++level, layer = 0;
  }
}

// Removes the kernel dimensions of a 1x1 convolution that is a linear layer in diffusers.
void without_kernel(NamedTensor& named) {
  std::vector<int64_t>& shape = named.entry.shape;
  while (shape.size() > 2 && shape.back() == 1) shape.pop_back();
}

void rename_vae_half(Renamer& names, const std::string& half, bool is_decoder) {
  const std::string from = "first_stage_model." + half;
  const std::string& to = half;
  const Names resnet = {{"nin_shortcut", "conv_shortcut"}};
  for (const char* same : {"conv_in.", "conv_out."}) names.move(from + same, to + same);
  names.move(from + "norm_out.", to + "conv_norm_out.");
  names.move(from + "mid.block_1.", to + "mid_block.resnets.0.", resnet);
  names.move(from + "mid.block_2.", to + "mid_block.resnets.1.", resnet);
  const std::string attention = from + "mid.attn_1.", own = to + "mid_block.attentions.0.";
  names.move(attention + "norm.", own + "group_norm.");
  for (const auto& [old_name, name] :
       Names{{"q", "to_q"}, {"k", "to_k"}, {"v", "to_v"}, {"proj_out", "to_out.0"}}) {
    for (const char* kind : {".weight", ".bias"})
      names.move_one(attention + std::string(old_name) + kind, own + std::string(name) + kind,
                     without_kernel);
  }
  const std::string blocks = from + (is_decoder ? "up." : "down.");
  int64_t count = 0;
  while (names.has_prefix(fmt::format("{}{}.", blocks, count))) ++count;
  for (int64_t i = 0; i < count; ++i) {
    const std::string block = fmt::format("{}{}.", blocks, i);
    // The file numbers the decoder's blocks from the finest one on.
    const std::string target = is_decoder ? fmt::format("{}up_blocks.{}.", to, count - 1 - i)
                                          : fmt::format("{}down_blocks.{}.", to, i);
    for (int64_t j = 0; names.has_prefix(fmt::format("{}block.{}.", block, j)); ++j)
      names.move(fmt::format("{}block.{}.", block, j), fmt::format("{}resnets.{}.", target, j), resnet);
    names.move(block + "downsample.conv.", target + "downsamplers.0.conv.");
    names.move(block + "upsample.conv.", target + "upsamplers.0.conv.");
  }
}

void rename_vae(Renamer& names) {
  rename_vae_half(names, "encoder.", /*is_decoder=*/false);
  rename_vae_half(names, "decoder.", /*is_decoder=*/true);
  for (const char* same : {"quant_conv.", "post_quant_conv."})
    names.move(std::string("first_stage_model.") + same, same);
}

// The text encoder of open_clip, whose queries, keys and values are one tensor.
void rename_open_clip(Renamer& names, const std::string& root) {
  const std::string to = "text_model.";
  names.move(root + "token_embedding.", to + "embeddings.token_embedding.");
  names.move_one(root + "positional_embedding", to + "embeddings.position_embedding.weight",
                 [](NamedTensor&) {});
  names.move(root + "ln_final.", to + "final_layer_norm.");
  names.move_one(root + "text_projection", "text_projection.weight", [](NamedTensor& named) {
    if (named.entry.shape.size() != 2) return;
    named.is_transposed = true;
    std::swap(named.entry.shape.front(), named.entry.shape.back());
  });
  for (int64_t i = 0; names.has_prefix(fmt::format("{}transformer.resblocks.{}.", root, i)); ++i) {
    const std::string from = fmt::format("{}transformer.resblocks.{}.", root, i);
    const std::string layer = fmt::format("{}encoder.layers.{}.", to, i);
    names.move(from + "ln_1.", layer + "layer_norm1.");
    names.move(from + "ln_2.", layer + "layer_norm2.");
    names.move(from + "attn.out_proj.", layer + "self_attn.out_proj.");
    names.move(from + "mlp.c_fc.", layer + "mlp.fc1.");
    names.move(from + "mlp.c_proj.", layer + "mlp.fc2.");
    constexpr const char* kProjections[] = {"q_proj.", "k_proj.", "v_proj."};
    for (int64_t part = 0; part < 3; ++part) {
      for (const char* kind : {"weight", "bias"})
        names.move_one(from + "attn.in_proj_" + kind, layer + "self_attn." + kProjections[part] + kind,
                       [&](NamedTensor& named) { take_rows(named, part, 3); });
    }
  }
}

bool any_name(const TensorFileHeader& header, const std::function<bool(std::string_view)>& holds) {
  return std::any_of(header.tensors.begin(), header.tensors.end(),
                     [&](const auto& each) { return holds(each.first); });
}

bool all_names(const TensorFileHeader& header, const std::function<bool(std::string_view)>& holds) {
  return !any_name(header, [&](std::string_view key) { return !holds(key); });
}

}  // namespace

NamedTensors single_file_part(const NamedTensors& tensors, const std::string& part) {
  if (part == "transformer") return denoiser_tensors(tensors);
  Renamer names(tensors);
  if (part == "unet") rename_unet(names);
  if (part == "vae") rename_vae(names);
  if (part == "text_encoder") {
    for (const char* root : {"cond_stage_model.transformer.", "conditioner.embedders.0.transformer."})
      names.move(root, "");
    rename_open_clip(names, "cond_stage_model.model.");
  }
  if (part == "text_encoder_2") rename_open_clip(names, "conditioner.embedders.1.model.");
  return std::move(names.result);
}

void refuse_additions(const TensorFileHeader& header, const std::string& where) {
  const auto has = [&](std::string_view part) {
    return any_name(header, [&](std::string_view key) { return key.find(part) != std::string_view::npos; });
  };
  if (has("lora_") || has(".lora.") || has("hada_") || has("lokr_"))
    input_error(where, "is a LoRA, which cannot be added to a model yet; name a whole model");
  if (any_name(header, [](std::string_view key) {
        return key.starts_with("control_model.") || key.starts_with("controlnet_");
      }))
    input_error(where, "is a ControlNet, which cannot be used yet; name a whole model");
  if (!header.tensors.empty() && all_names(header, [](std::string_view key) {
        return key == "emb_params" || key == "clip_l" || key == "clip_g" ||
               key.starts_with("string_to_param") || (key.starts_with('<') && key.ends_with('>'));
      }))
    input_error(where,
                "is an embedding of textual inversion; load it with diffusers and save the tokenizer and the "
                "text encoder, or name a whole model");
}

void require_whole_model(const TensorFileHeader& header, const std::string& where) {
  if (any_name(header, [](std::string_view key) { return key.starts_with("model.diffusion_model."); }))
    return;
  refuse_additions(header, where);
  if (header.tensors.empty()) input_error(where, "holds no tensors; get the file again");
  if (all_names(header, [](std::string_view key) {
        return key.starts_with("encoder.") || key.starts_with("decoder.") ||
               key.find("quant_conv.") != std::string_view::npos;
      }))
    input_error(where, "is a VAE alone; name a whole model");
}

std::optional<bool> is_of_xl(const TensorFileHeader& header) {
  for (const auto& [key, entry] : header.tensors) {
    if (key.starts_with("conditioner.embedders.")) return true;
    if (key.starts_with("cond_stage_model.")) return false;
  }
  return std::nullopt;
}

StatedTraining stated_training(const TensorFileHeader& header) {
  // The names in modelspec's metadata (https://github.com/Stability-AI/ModelSpec), and diffusers'.
  static const std::map<std::string, std::string> names = {{"epsilon", "epsilon"},
                                                           {"eps", "epsilon"},
                                                           {"v", "v_prediction"},
                                                           {"v_prediction", "v_prediction"},
                                                           {"v-prediction", "v_prediction"}};
  StatedTraining stated;
  const auto told = header.metadata.find("modelspec.prediction_type");
  const auto known = told == header.metadata.end() ? names.end() : names.find(told->second);
  if (known != names.end()) stated.prediction = known->second;
  // Empty tensors, as in fine-tuned Stable Diffusion XL models.
  if (header.tensors.contains("v_pred")) stated.prediction = "v_prediction";
  stated.zero_snr = header.tensors.contains("ztsnr");
  for (const char* key : {"edm_mean", "edm_vpred.sigma_max"}) {
    if (header.tensors.contains(key)) stated.edm = key;
  }
  return stated;
}

}  // namespace tessera::weights
