#include "models/z_image.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "models/loading.h"
#include "models/qwen3_prompt.h"
#include "nn/embeddings.h"
#include "nn/patches.h"
#include "ops/attention.h"
#include "ops/modulate.h"

namespace tessera::models {
namespace {

constexpr int64_t kZImageTimeChannels = 256, kZImageTimeInner = 1024;
constexpr double kHeadNormEps = 1e-5, kFinalNormEps = 1e-6;
constexpr nn::PatchSize kZImagePatch{1, 2, 2};
constexpr ops::LinearOptions kZImageNoBias{.bias = false};

int64_t filling_of(int64_t length) {
  return (ZImageConfig::kFilledTo - length % ZImageConfig::kFilledTo) % ZImageConfig::kFilledTo;
}

int64_t feed_forward_width(const ZImageConfig& config) {
  return static_cast<int64_t>(static_cast<double>(config.dim) / 3 * 8);
}

// The channels of a token come last in the file, but first in nn::patchify().
ops::Linear read_x_embedder(const weights::Scope& scope, const ZImageConfig& config) {
  const int64_t size = kZImagePatch.size();
  const at::Tensor weight = scope.tensor("weight", {config.dim, size * config.in_channels});
  return {weight.view({config.dim, size, config.in_channels}).transpose(1, 2).flatten(1).contiguous(),
          scope.tensor("bias", {config.dim}), ops::Packing::kForSpeed, scope.name()};
}

// Returns the angles of tokens at `positions` [s, 3], fp32 [s, D / 2, 2].
at::Tensor angles_of(const at::Tensor& positions, const ZImageConfig& config, at::Device device) {
  std::vector<nn::RotaryAxis> axes;
  for (const int64_t features : config.axes_dims) axes.push_back({features, config.rope_theta});
  return nn::rotary_table(positions, axes, device, {.angles = at::kFloat});
}

// Text token i is at position (1 + i, 0, 0).
at::Tensor text_positions(int64_t length) {
  return nn::grid_positions({.frames = length, .rows = 1, .columns = 1}, {1, 0, 0});
}

// Returns a vector for all samples, or one for each, as a factor of [B, s, C].
at::Tensor factor(const at::Tensor& x) {
  return x.size(0) == 1 ? x[0] : x.unsqueeze(1);
}

at::Tensor as_vectors(const at::Tensor& x) {
  return x.size(0) == 1 ? x[0] : x;
}

}  // namespace

ZImageAttention::ZImageAttention(const weights::Scope& scope, const ZImageConfig& config) {
  const nn::Split heads{config.n_heads, config.depth()};
  to_qkv = nn::ColumnParallel({{scope / "to_q", heads}, {scope / "to_k", heads}, {scope / "to_v", heads}},
                              config.dim, kZImageNoBias);
  to_out = nn::RowParallel(scope / "to_out" / 0, heads, config.dim, kZImageNoBias);
  if (!config.qk_norm) return;
  norm_q.emplace(scope / "norm_q", config.depth(), kHeadNormEps);
  norm_k.emplace(scope / "norm_k", config.depth(), kHeadNormEps);
}

at::Tensor ZImageAttention::operator()(const at::Tensor& x, const at::Tensor& angles,
                                       const Attend& attend) const {
  const std::vector<at::Tensor> qkv = to_qkv.each(x);
  // Samples have texts of different lengths and therefore angles of their own, so each token is rotated by
  // itself.
  const at::Tensor by_token = angles.flatten(0, 1);
  const auto prepared = [&](const at::Tensor& y, const std::optional<nn::HeadNorm>& norm) {
    const at::Tensor tokens = y.reshape({1, -1, y.size(2)});
    return (norm ? (*norm)(tokens, by_token) : nn::rotate(tokens, by_token)).view(y.sizes());
  };
  return to_out(attend({prepared(qkv[0], norm_q), prepared(qkv[1], norm_k), qkv[2]}));
}

ZImageBlock::ZImageBlock(const weights::Scope& scope, const ZImageConfig& config, bool is_modulated)
    : attention(scope / "attention", config),
      w1(scope / "feed_forward" / "w1", config.dim, {feed_forward_width(config), 1}, kZImageNoBias),
      w3(scope / "feed_forward" / "w3", config.dim, {feed_forward_width(config), 1}, kZImageNoBias),
      w2(scope / "feed_forward" / "w2", {feed_forward_width(config), 1}, config.dim, kZImageNoBias),
      attention_norm1(scope / "attention_norm1", config.dim, config.norm_eps),
      attention_norm2(scope / "attention_norm2", config.dim, config.norm_eps),
      ffn_norm1(scope / "ffn_norm1", config.dim, config.norm_eps),
      ffn_norm2(scope / "ffn_norm2", config.dim, config.norm_eps) {
  if (is_modulated)
    adaLN_modulation.emplace(scope / "adaLN_modulation" / 0, config.time_width(), 4 * config.dim);
}

void ZImageBlock::operator()(at::Tensor& x, const at::Tensor& angles, const at::Tensor& time,
                             const ZImageAttention::Attend& attend) const {
  const auto feed_forward = [&](const at::Tensor& y) {
    return w2(w1(y, ops::Activation::kSilu).mul_(w3(y)));
  };
  if (!adaLN_modulation) {
    x = x + attention_norm2(attention(attention_norm1(x), angles, attend));
    x = x + ffn_norm2(feed_forward(ffn_norm1(x)));
    return;
  }
  const std::vector<at::Tensor> parts = (*adaLN_modulation)(time).to(at::kFloat).chunk(4, 1);
  const auto scaled = [&](at::Tensor y, const at::Tensor& scale) {
    return y.mul_(factor((1 + scale).to(y.scalar_type())));
  };
  const auto gate = [&](size_t i) { return as_vectors(at::tanh(parts[i])); };
  const at::Tensor attended = attention(scaled(attention_norm1(x), parts[0]), angles, attend);
  ops::add_gated_(x, attention_norm2(attended), gate(1));
  ops::add_gated_(x, ffn_norm2(feed_forward(scaled(ffn_norm1(x), parts[2]))), gate(3));
}

ZImageTransformer::Texts::Texts(const weights::Scope& scope, const ZImageConfig& config)
    : norm(scope / "cap_embedder" / 0, config.cap_feat_dim, config.norm_eps),
      linear(scope / "cap_embedder" / 1, config.cap_feat_dim, config.dim),
      pad_token(scope.tensor("cap_pad_token", {1, config.dim})) {
  for (int64_t i = 0; i < config.n_refiner_layers; ++i)
    context_refiner.emplace_back(scope / "context_refiner" / i, config, /*is_modulated=*/false);
}

at::Tensor ZImageTransformer::Texts::operator()(const at::Tensor& states, const ZImageConfig& config) const {
  const at::Tensor own = linear(norm(states));
  at::Tensor text = at::concat({own, pad_token.expand({filling_of(own.size(0)), config.dim})}).unsqueeze(0);
  const at::Tensor angles = angles_of(text_positions(text.size(1)), config, text.device()).unsqueeze(0);
  for (const ZImageBlock& block : context_refiner) {
    block(text, angles, {}, [&](const nn::QueriesKeysValues& all) {
      return ops::attention(all.q, all.k, all.v, all.q.size(2) / config.depth());
    });
  }
  return text[0];
}

ZImageTransformer::FinalLayer::FinalLayer(const weights::Scope& scope, const ZImageConfig& config)
    : linear(scope / "linear", config.dim, kZImagePatch.size() * config.in_channels),
      adaLN_modulation(scope / "adaLN_modulation" / 1, config.time_width(), config.dim) {}

ZImageTransformer::ZImageTransformer(const weights::Scope& scope, const ZImageConfig& config,
                                     const LocalBlocks& local_blocks)
    : config_(config),
      time_in_(scope.with_dtype(at::kFloat) / "t_embedder" / "mlp" / 0, kZImageTimeChannels,
               kZImageTimeInner),
      time_out_(scope.with_dtype(at::kFloat) / "t_embedder" / "mlp" / 2, kZImageTimeInner,
                config.time_width()),
      blocks_(local_blocks,
              [&](int64_t i) {
                const int64_t refiners = config.n_refiner_layers;
                return ZImageBlock(
                    i < refiners ? scope / "noise_refiner" / i : scope / "layers" / (i - refiners), config,
                    /*is_modulated=*/true);
              }),
      dtype_(scope.dtype()) {
  if (local_blocks.takes_latents()) {
    x_embedder_ = read_x_embedder(scope / "all_x_embedder" / "2-1", config);
    x_pad_token_ = scope.tensor("x_pad_token", {1, config.dim});
  }
  const Range& own = local_blocks.blocks();
  if (own.begin <= config.n_refiner_layers && config.n_refiner_layers < own.end())
    texts_.emplace(scope, config);
  if (local_blocks.predicts()) final_layer_.emplace(scope / "all_final_layer" / "2-1", config);
}

at::Tensor ZImageTransformer::guide(const at::Tensor& negative, const at::Tensor& positive,
                                    double scale) const {
  return positive + (scale - 1) * (positive - negative);
}

class ZImageForward final : public Forward {
 public:
  ZImageForward(const ZImageTransformer& model, const ForwardInputs& inputs)
      : model_(model), tokens_(inputs.tokens), filling_(filling_of(inputs.tokens.grid().tokens())) {
    const ZImageConfig& config = model.config_;
    const at::Device device = model.time_in_.bias.device();
    std::vector<at::Tensor> texts, of_image, of_texts;
    const int64_t longest = read_lengths(inputs);
    const auto filled_up = [&](const at::Tensor& x) {
      return at::constant_pad_nd(x.flatten(1), {0, 0, 0, longest - x.size(0)});
    };
    std::vector<at::Tensor> by_prompt;
    if (model.texts_) {
      for (const Conditioning& prompt : inputs.prompts)
        by_prompt.push_back((*model.texts_)(prompt.at(kTokens).to(model.dtype_), config));
    }
    for (size_t b = 0; b < lengths_.size(); ++b) {
      const int64_t length = lengths_[b];
      // The picture is one frame after the text.
      of_image.push_back(angles_of(
          nn::grid_positions(tokens_.grid(), {static_cast<double>(1 + length), 0, 0}), config, device));
      of_texts.push_back(filled_up(angles_of(text_positions(length), config, device)));
      if (model.texts_) texts.push_back(filled_up(by_prompt[static_cast<size_t>(inputs.prompt_of[b])]));
    }
    if (model.texts_) texts_ = at::stack(texts);
    angles_ = at::stack(of_image);
    angles_of_texts_ = at::stack(of_texts);
    angles_at_origin_ = angles_of(at::zeros({1, 3}, at::kDouble), config, device);
  }

  void begin(const Timestep& timestep) override {
    constexpr double kSteps = 1000;
    const at::Tensor time = (kSteps - timestep.on_device) / kSteps * model_.config_.t_scale;
    time_ = model_
                .time_out_(model_.time_in_(nn::sinusoidal_embedding(time, kZImageTimeChannels),
                                           ops::Activation::kSilu))
                .to(model_.dtype_);
  }

  Hidden embed(const at::Tensor& latents) override {
    Hidden hidden = {model_.x_embedder_(nn::patchify(latents.to(model_.dtype_), kZImagePatch))};
    if (filling_ > 0) {
      const int64_t local = tokens_.local_other_length(filling_);
      hidden.push_back(model_.x_pad_token_.expand({latents.size(0), local, -1}));
    }
    return hidden;
  }

  void block(int64_t i, Hidden& hidden) override {
    const int64_t refiners = model_.config_.n_refiner_layers;
    // If the embedder of texts is elsewhere, the output of the previous block includes the text, even if none
    // of its tokens are here.
    if (i >= refiners && texts_.defined() && !has_text(hidden)) {
      const at::Tensor text = tokens_.local_other(texts_, lengths_);
      if (hidden.size() > 1)
        hidden[1] = at::concat({hidden[1], text}, 1);
      else
        hidden.push_back(text);
    }
    const int64_t image = hidden[0].size(1);
    const bool has_other = hidden.size() > 1;
    at::Tensor x = has_other ? at::concat(hidden, 1) : hidden[0];
    model_.blocks_[i](x, angles(i < refiners), time_, [&](const nn::QueriesKeysValues& all) {
      if (!has_other) return tokens_.attention(all, model_.config_.depth());
      const auto of_image = [&](const at::Tensor& y) { return y.narrow(1, 0, image); };
      const auto of_other = [&](const at::Tensor& y) { return y.narrow(1, image, y.size(1) - image); };
      const nn::QueriesKeysValues own{of_image(all.q), of_image(all.k), of_image(all.v)},
          other{of_other(all.q), of_other(all.k), of_other(all.v)};
      const auto [attended, attended_other] =
          i < refiners ? tokens_.joint_attention(own, other, filling_, model_.config_.depth())
                       : tokens_.joint_attention(own, other, lengths_, model_.config_.depth(), filling_);
      return at::concat({attended, attended_other}, 1);
    });
    hidden[0] = x.narrow(1, 0, image);
    if (has_other) hidden[1] = x.narrow(1, image, x.size(1) - image);
  }

  at::Tensor head(const Hidden& hidden) override {
    const ZImageTransformer::FinalLayer& layer = *model_.final_layer_;
    const at::Tensor scale = as_vectors(layer.adaLN_modulation(at::silu(time_)).to(at::kFloat));
    const at::Tensor normed =
        ops::modulated_layer_norm(hidden[0].contiguous(), scale, at::zeros_like(scale), kFinalNormEps);
    // The model predicts the data minus the noise; samplers take the noise minus the data.
    return -nn::unpatchify(layer.linear(normed).to(at::kFloat), tokens_.held(), kZImagePatch).squeeze(2);
  }

  std::vector<Stream> streams(int64_t i) const override {
    const int64_t width = model_.config_.dim;
    std::vector<Stream> all = {{.width = width}};
    Stream other{.width = width};
    if (filling_ > 0) other.others.push_back({filling_});
    if (i > model_.config_.n_refiner_layers) other.others.push_back(lengths_);
    if (!other.others.empty()) all.push_back(other);
    return all;
  }

 private:
  // Returns the angles of all local tokens of the current patches, [B, n, D / 2, 2]: those of the picture, of
  // its filling, and, after the refiners, of the text.
  const at::Tensor& angles(bool is_refiner) {
    if (run_of_angles_ != tokens_.run()) {
      const at::Tensor of_image = tokens_.local(angles_, 1);
      const at::Tensor of_filling =
          angles_at_origin_.expand({of_image.size(0), tokens_.local_other_length(filling_), -1, -1});
      const at::Tensor of_texts =
          tokens_.local_other(angles_of_texts_, lengths_).unflatten(2, {of_image.size(2), of_image.size(3)});
      angles_of_refiners_ = filling_ > 0 ? at::concat({of_image, of_filling}, 1) : of_image;
      angles_of_all_ = at::concat({angles_of_refiners_, of_texts}, 1);
      run_of_angles_ = tokens_.run();
    }
    return is_refiner ? angles_of_refiners_ : angles_of_all_;
  }
  bool has_text(const Hidden& hidden) const {
    return hidden.size() > 1 && hidden[1].size(1) > tokens_.local_other_length(filling_);
  }
  // Sets the length of each sample's text including its padding; returns the longest.
  int64_t read_lengths(const ForwardInputs& inputs) {
    for (const int64_t prompt : inputs.prompt_of) {
      const int64_t length = inputs.prompts[static_cast<size_t>(prompt)].at(kTokens).size(0);
      lengths_.push_back(length + filling_of(length));
    }
    return *std::max_element(lengths_.begin(), lengths_.end());
  }

  const ZImageTransformer& model_;
  nn::Tokens& tokens_;
  int64_t filling_;               // P
  std::vector<int64_t> lengths_;  // [B], L
  at::Tensor texts_;              // [B, L, C]
  // [B, N, D / 2, 2], [B, L, D], and [1, D / 2, 2]
  at::Tensor angles_, angles_of_texts_, angles_at_origin_;
  // The angles of the current patches.
  std::optional<Range> run_of_angles_;
  at::Tensor angles_of_refiners_, angles_of_all_;
  at::Tensor time_;  // the step's, [1 or B, T]
};

std::unique_ptr<Forward> ZImageTransformer::start(const ForwardInputs& inputs) const {
  return std::make_unique<ZImageForward>(*this, inputs);
}

DenoiserShape read_z_image_shape(const std::filesystem::path& model) {
  const ZImageConfig config(JsonConfig::read(part_folder(model, "transformer") / "config.json"));
  // A block has products of width x width: four around attention and eight in the feed-forward.
  const double block = 12.0 * static_cast<double>(config.dim);
  const auto ends = static_cast<double>(kZImagePatch.size() * config.in_channels);
  return {.heads = config.n_heads,
          .blocks = config.blocks(),
          .embedding = ends / block,
          .head = ends / block,
          .latent_channels = config.in_channels,
          .sample_size = 128,
          .patch = kZImagePatch,
          .most_tokens = {{config.axes_lens[1], config.axes_lens[2]}}};
}

std::unique_ptr<Denoiser> load_z_image(const std::filesystem::path& model, const LoadOptions& options,
                                       LoadStatistics& statistics) {
  PartFiles files(part_folder(model, "transformer"), weights::Library::kDiffusers, options);
  const ZImageConfig config(files.config());
  const LocalBlocks local_blocks(config.blocks(), options.blocks);
  auto transformer = std::make_unique<ZImageTransformer>(files.scope(), config, local_blocks);
  std::vector<std::string_view> ignored;
  if (config.n_layers == 0) ignored = {"cap_", "context_refiner."};  // without blocks that see the text
  files.finish(statistics, local_blocks.is_all(), ignored);
  return transformer;
}

std::unique_ptr<TextEncoder> load_z_image_text_encoder(const std::filesystem::path& model,
                                                       const LoadOptions& options,
                                                       LoadStatistics& statistics) {
  const ZImageConfig config(JsonConfig::read(part_folder(model, "transformer") / "config.json"));
  return std::make_unique<Qwen3TextEncoder>(
      model / "tokenizer", model / "text_encoder",
      Qwen3PromptOptions{.states = {-2}, .most_tokens = config.most_text()}, options, statistics);
}

}  // namespace tessera::models
