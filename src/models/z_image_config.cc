#include <algorithm>
#include <numeric>

#include "models/z_image.h"

namespace tessera::models {
namespace {

constexpr int64_t kMostOfZImage = 65536;
constexpr int64_t kMostTimeWidth = 256;

}  // namespace

ZImageConfig::ZImageConfig(const JsonConfig& json)
    : in_channels(json.count("in_channels", kMostOfZImage, 16)),
      dim(json.count("dim", kMostOfZImage, 3840)),
      n_layers(json.integer("n_layers", 30)),
      n_refiner_layers(json.integer("n_refiner_layers", 2)),
      n_heads(json.count("n_heads", kMostOfZImage, 30)),
      cap_feat_dim(json.count("cap_feat_dim", kMostOfZImage, 2560)),
      norm_eps(json.number_within("norm_eps", 0, 1, 1e-5)),
      rope_theta(json.number("rope_theta", 256)),
      t_scale(json.number("t_scale", 1000)),
      qk_norm(json.boolean("qk_norm", true)),
      axes_dims(json.integers("axes_dims", std::vector<int64_t>{32, 48, 48})),
      axes_lens(json.integers("axes_lens", std::vector<int64_t>{1024, 512, 512})) {
  if (json.string("_class_name", "ZImageTransformer2DModel") != "ZImageTransformer2DModel")
    json.fail("_class_name", "\"ZImageTransformer2DModel\"");
  // diffusers uses as many key heads as query heads, whatever this is.
  json.integer("n_kv_heads", 30, Null::kDefault);
  if (json.has("siglip_feat_dim"))
    json.refuse("siglip_feat_dim", "pictures as a part of the prompt (Omni) are not supported");
  const std::vector<int64_t> sizes = json.integers("all_patch_size", std::vector<int64_t>{2}),
                             frames = json.integers("all_f_patch_size", std::vector<int64_t>{1});
  if (sizes.size() != frames.size())
    json.fail("all_f_patch_size", fmt::format("{} numbers, as in all_patch_size", sizes.size()));
  bool has_patch = false;
  for (size_t i = 0; i < sizes.size(); ++i) has_patch |= sizes[i] == 2 && frames[i] == 1;
  if (!has_patch) json.refuse("all_patch_size", "only patches of 2 x 2 latents and 1 frame can be had here");
  for (const auto& [key, layers] :
       {std::pair("n_layers", n_layers), {"n_refiner_layers", n_refiner_layers}}) {
    if (layers < 0 || layers > kMostOfZImage) json.fail(key, fmt::format("from 0 to {}", kMostOfZImage));
  }
  if (blocks() == 0) json.fail("n_layers", "at least 1 without refiners (n_refiner_layers)");
  if (dim % n_heads != 0) json.fail("n_heads", fmt::format("a divisor of dim ({})", dim));
  const auto is_no_axis = [](int64_t features) { return features < 0 || features % 2 != 0; };
  if (axes_dims.size() != 3 || std::any_of(axes_dims.begin(), axes_dims.end(), is_no_axis) ||
      std::accumulate(axes_dims.begin(), axes_dims.end(), int64_t{0}) != depth())
    json.fail("axes_dims", fmt::format("three even numbers with the sum {} (dim / n_heads)", depth()));
  if (axes_lens.size() != 3 || *std::min_element(axes_lens.begin(), axes_lens.end()) < 1 || most_text() == 0)
    json.fail("axes_lens",
              fmt::format("three positive numbers, of which the first is at least {}", kFilledTo + 2));
  if (!(rope_theta > 0)) json.fail("rope_theta", "a positive number");
}

int64_t ZImageConfig::time_width() const {
  return std::min(dim, kMostTimeWidth);
}

int64_t ZImageConfig::most_text() const {
  // Positions of the text begin at 1.
  return (axes_lens[0] - 2) / kFilledTo * kFilledTo;
}

}  // namespace tessera::models
