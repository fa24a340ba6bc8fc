#include "weights/denoiser_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace tessera::weights {
namespace {

// The prefix of all names, as saved by ComfyUI and trainers.
constexpr auto kPrefixes =
    std::to_array<std::string_view>({"", "model.diffusion_model.", "diffusion_model."});

constexpr std::string_view kZImage = "ZImageTransformer2DModel", kFlux2 = "Flux2Transformer2DModel";

// The first match counts.
constexpr auto kKnownFiles = std::to_array<KnownFile>({
    {"Z-Image", kZImage, "x_pad_token"},
    {"FLUX.2", kFlux2, "double_stream_modulation_img.lin.weight"},
    {"FLUX.2", kFlux2, "double_stream_modulation_img.linear.weight"},
    {"Stable Diffusion", "UNet2DConditionModel", "input_blocks.0.0.weight"},
    {"FLUX.1", "", "double_blocks.0.img_mod.lin.weight"},
    {"Qwen-Image", "", "transformer_blocks.0.img_mod.1.weight"},
    {"Stable Diffusion 3", "", "joint_blocks.0.x_block.attn.qkv.weight"},
    {"Wan", "", "blocks.0.self_attn.q.weight"},
    {"Lumina", "", "cap_embedder.1.weight"},
    {"a text encoder", "", "model.embed_tokens.weight"},
});

// How names with this beginning are translated; '*' stands for a word, which is inserted in the result.
struct Rule {
  std::string_view from;
  // If there are several, each gets a part of the rows, in order; if there are none, the tensor is not used.
  std::vector<std::string_view> to;
  bool swaps_halves = false;
};

const std::vector<Rule>& z_image_rules() {
  static const std::vector<Rule> rules = {
      {"x_embedder.", {"all_x_embedder.2-1."}},
      {"final_layer.", {"all_final_layer.2-1."}},
      {"*.*.attention.qkv.", {"*.*.attention.to_q.", "*.*.attention.to_k.", "*.*.attention.to_v."}},
      {"*.*.attention.out.", {"*.*.attention.to_out.0."}},
      {"*.*.attention.q_norm.", {"*.*.attention.norm_q."}},
      {"*.*.attention.k_norm.", {"*.*.attention.norm_k."}},
      {"norm_final.weight", {}},
  };
  return rules;
}

// The last modulation is stored as shift and scale, but diffusers expects scale and shift.
const std::vector<Rule>& flux2_rules() {
  static const std::vector<Rule> rules = {
      {"img_in.", {"x_embedder."}},
      {"txt_in.", {"context_embedder."}},
      {"time_in.in_layer.", {"time_guidance_embed.timestep_embedder.linear_1."}},
      {"time_in.out_layer.", {"time_guidance_embed.timestep_embedder.linear_2."}},
      {"guidance_in.in_layer.", {"time_guidance_embed.guidance_embedder.linear_1."}},
      {"guidance_in.out_layer.", {"time_guidance_embed.guidance_embedder.linear_2."}},
      {"double_stream_modulation_img.lin.", {"double_stream_modulation_img.linear."}},
      {"double_stream_modulation_txt.lin.", {"double_stream_modulation_txt.linear."}},
      {"single_stream_modulation.lin.", {"single_stream_modulation.linear."}},
      {"double_blocks.*.img_attn.qkv.",
       {"transformer_blocks.*.attn.to_q.", "transformer_blocks.*.attn.to_k.",
        "transformer_blocks.*.attn.to_v."}},
      {"double_blocks.*.img_attn.proj.", {"transformer_blocks.*.attn.to_out.0."}},
      {"double_blocks.*.img_attn.norm.query_norm.*", {"transformer_blocks.*.attn.norm_q.weight"}},
      {"double_blocks.*.img_attn.norm.key_norm.*", {"transformer_blocks.*.attn.norm_k.weight"}},
      {"double_blocks.*.img_mlp.0.", {"transformer_blocks.*.ff.linear_in."}},
      {"double_blocks.*.img_mlp.2.", {"transformer_blocks.*.ff.linear_out."}},
      {"double_blocks.*.txt_attn.qkv.",
       {"transformer_blocks.*.attn.add_q_proj.", "transformer_blocks.*.attn.add_k_proj.",
        "transformer_blocks.*.attn.add_v_proj."}},
      {"double_blocks.*.txt_attn.proj.", {"transformer_blocks.*.attn.to_add_out."}},
      {"double_blocks.*.txt_attn.norm.query_norm.*", {"transformer_blocks.*.attn.norm_added_q.weight"}},
      {"double_blocks.*.txt_attn.norm.key_norm.*", {"transformer_blocks.*.attn.norm_added_k.weight"}},
      {"double_blocks.*.txt_mlp.0.", {"transformer_blocks.*.ff_context.linear_in."}},
      {"double_blocks.*.txt_mlp.2.", {"transformer_blocks.*.ff_context.linear_out."}},
      {"single_blocks.*.linear1.", {"single_transformer_blocks.*.attn.to_qkv_mlp_proj."}},
      {"single_blocks.*.linear2.", {"single_transformer_blocks.*.attn.to_out."}},
      {"single_blocks.*.norm.query_norm.*", {"single_transformer_blocks.*.attn.norm_q.weight"}},
      {"single_blocks.*.norm.key_norm.*", {"single_transformer_blocks.*.attn.norm_k.weight"}},
      {"final_layer.linear.", {"proj_out."}},
      {"final_layer.adaLN_modulation.1.", {"norm_out.linear."}, /*swaps_halves=*/true},
  };
  return rules;
}

// The parts of a name that matches a pattern: the words that the stars stand for, and what follows.
struct Match {
  std::vector<std::string_view> words;
  std::string_view rest;
};

std::optional<Match> match(std::string_view pattern, std::string_view name) {
  Match found;
  for (; !pattern.empty(); pattern.remove_prefix(1)) {
    if (pattern.front() != '*') {
      if (name.empty() || name.front() != pattern.front()) return std::nullopt;
      name.remove_prefix(1);
      continue;
    }
    found.words.push_back(name.substr(0, name.find('.')));
    if (found.words.back().empty()) return std::nullopt;
    name.remove_prefix(found.words.back().size());
  }
  found.rest = name;
  return found;
}

// A star without a corresponding word stays.
std::string filled(std::string_view pattern, const Match& match) {
  std::string name;
  auto word = match.words.begin();
  for (const char each : pattern)
    each == '*' && word != match.words.end() ? name.append(*word++) : name.append(1, each);
  return name.append(match.rest);
}

struct Known {
  const KnownFile* file;
  std::string_view prefix;
};

template <typename Tensors>
std::optional<Known> recognise_in(const Tensors& tensors) {
  for (const KnownFile& each : kKnownFiles) {
    for (const std::string_view prefix : kPrefixes) {
      if (tensors.contains(std::string(prefix).append(each.key))) return Known{&each, prefix};
    }
  }
  return std::nullopt;
}

bool is_of_denoiser(const Known& known) {
  return known.file->class_name == kZImage || known.file->class_name == kFlux2;
}

const std::vector<Rule>& rules_of(const Known& known) {
  return known.file->class_name == kZImage ? z_image_rules() : flux2_rules();
}

std::string_view without_prefix(std::string_view key, std::string_view prefix) {
  return key.substr(key.starts_with(prefix) ? prefix.size() : 0);
}

class DenoiserNames {
 public:
  explicit DenoiserNames(const Known& known) : prefix_(known.prefix), rules_(rules_of(known)) {}

  void add(const std::string& key, const NamedTensor& tensor) {
    const std::string_view name = without_prefix(key, prefix_);
    for (const Rule& rule : rules_) {
      const std::optional<Match> found = match(rule.from, name);
      if (!found) continue;
      const auto parts = static_cast<int64_t>(rule.to.size());
      for (int64_t part = 0; part < parts; ++part) {
        NamedTensor taken = tensor;
        if (parts > 1) take_rows(taken, part, parts);
        taken.has_halves_swapped = rule.swaps_halves && !taken.entry.shape.empty();
        put(filled(rule.to[static_cast<size_t>(part)], *found), std::move(taken), key);
      }
      return;
    }
    NamedTensor taken = tensor;
    // Some files leave out leading dimensions of size one.
    if (name.ends_with("_pad_token") && taken.entry.shape.size() == 1)
      taken.entry.shape.insert(taken.entry.shape.begin(), 1);
    put(std::string(name), std::move(taken), key);
  }

  NamedTensors result;

 private:
  void put(std::string name, NamedTensor tensor, const std::string& key) {
    const auto [place, is_new] = result.emplace(std::move(name), std::move(tensor));
    if (!is_new) input_error(key, "is there twice: another tensor is '{}' too", place->first);
  }

  const std::string_view prefix_;
  const std::vector<Rule>& rules_;
};

}  // namespace

const KnownFile* recognise(const TensorFileHeader& header) {
  const std::optional<Known> known = recognise_in(header.tensors);
  return known ? known->file : nullptr;
}

bool is_in_single_file(const TensorFileHeader& header, std::string_view part) {
  const std::optional<Known> known = recognise_in(header.tensors);
  return !known || !is_of_denoiser(*known) || part == "transformer";
}

NamedTensors denoiser_tensors(const NamedTensors& tensors) {
  const std::optional<Known> known = recognise_in(tensors);
  if (!known || !is_of_denoiser(*known)) return {};
  DenoiserNames names(*known);
  for (const auto& [key, tensor] : tensors) names.add(key, tensor);
  return std::move(names.result);
}

std::string original_name(const TensorFileHeader& header, const std::string& key) {
  const std::optional<Known> known = recognise_in(header.tensors);
  if (!known || !is_of_denoiser(*known)) return {};
  const std::vector<Rule>& rules = rules_of(*known);
  const auto is_original = [&](const auto& each) {
    const std::string_view name = without_prefix(each.first, known->prefix);
    return std::any_of(rules.begin(), rules.end(),
                       [&](const Rule& rule) { return match(rule.from, name).has_value(); });
  };
  if (std::none_of(header.tensors.begin(), header.tensors.end(), is_original)) return {};
  for (const Rule& rule : rules) {
    for (const std::string_view to : rule.to) {
      if (const std::optional<Match> found = match(to, key))
        return std::string(known->prefix).append(filled(rule.from, *found));
    }
  }
  return known->prefix.empty() ? "" : std::string(known->prefix).append(key);
}

}  // namespace tessera::weights
