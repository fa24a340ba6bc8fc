#include "models/flux2.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "core/error.h"
#include "models/loading.h"
#include "models/qwen3_prompt.h"
#include "nn/patches.h"
#include "nn/rotary.h"
#include "ops/modulate.h"

namespace tessera::models {
namespace {

constexpr ops::LinearOptions kFlux2NoBias{.bias = false};
constexpr double kFlux2Times = 1000;     // the factor of the noise level and of the guidance scale before the
                                         // sinusoids
constexpr double kReferenceFrames = 10;  // from one picture to the next on the axis of frames

// FLUX.2 dev was trained with this message of the system before each prompt:
// https://github.com/black-forest-labs/flux2/blob/main/src/flux2/system_messages.py
constexpr std::string_view kFlux2DevSystem =
    "You are an AI that reasons about image descriptions. You give structured responses focusing on object "
    "relationships, object\nattribution and actions without speculation.";

nn::Split heads_of(const Flux2Config& config) {
  return {config.num_attention_heads, config.attention_head_dim};
}

nn::ColumnParallel read_to_qkv(const weights::Scope& attn, const Flux2Config& config, bool is_text) {
  const nn::Split heads = heads_of(config);
  return {{{attn / (is_text ? "add_q_proj" : "to_q"), heads},
           {attn / (is_text ? "add_k_proj" : "to_k"), heads},
           {attn / (is_text ? "add_v_proj" : "to_v"), heads}},
          config.width(),
          kFlux2NoBias};
}

// The rows of the weight are those of queries, keys and values, followed by those of the feed-forward: the
// gate, and what it gates.
nn::ColumnParallel read_to_qkv_mlp(const weights::Scope& scope, const Flux2Config& config) {
  const nn::Split heads = heads_of(config), inner{config.feed_forward_width(), 1};
  const int64_t width = heads.features(), all = 3 * width + 2 * inner.units;
  return {{{scope, heads, 0, all},
           {scope, heads, width, all},
           {scope, heads, 2 * width, all},
           {scope, inner, 3 * width, all},
           {scope, inner, 3 * width + inner.units, all}},
          config.width(),
          kFlux2NoBias};
}

// This is SwiGLU (arXiv:2002.05202).
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& x) {
  return ops::activate(gate, ops::Activation::kSilu).mul_(x);
}

// diffusers keeps hidden states in fp16 from becoming infinite.
void bound(at::Tensor& x) {
  constexpr double kLargestHalf = 65504;
  if (x.scalar_type() == at::kHalf) x.clamp_(-kLargestHalf, kLargestHalf);
}

at::Tensor modulated(const at::Tensor& x, const Flux2Modulation& modulation, double eps) {
  return ops::modulated_layer_norm(x, modulation.scale, modulation.shift, eps);
}

// Returns the modulations of the sublayers that `linear` modulates; `vector` [1 or B, C] represents the step.
std::vector<Flux2Modulation> modulations(const ops::Linear& linear, const at::Tensor& vector) {
  const at::Tensor all = linear(vector).to(at::kFloat);
  const int64_t count = linear.out_features / linear.in_features;
  const std::vector<at::Tensor> parts = (all.size(0) == 1 ? all[0] : all).chunk(count, -1);
  std::vector<Flux2Modulation> each;
  for (size_t i = 0; i < parts.size(); i += 3) each.push_back({parts[i], parts[i + 1], parts[i + 2]});
  return each;
}

// Returns the angles of tokens at `positions` [s, 4], fp32 [s, D / 2, 2].
at::Tensor angles_of(const at::Tensor& positions, const Flux2Config& config, at::Device device) {
  std::vector<nn::RotaryAxis> axes;
  for (const int64_t features : config.axes_dims_rope) axes.push_back({features, config.rope_theta});
  return nn::rotary_table(positions.narrow(1, 0, static_cast<int64_t>(axes.size())), axes, device);
}

// Returns the positions of the picture, followed by those of the references.
at::Tensor picture_positions(const parallel::Grid& grid, const std::vector<at::Tensor>& references) {
  std::vector<at::Tensor> all = {nn::grid_positions(grid)};
  for (const at::Tensor& z : references) {
    const double frame = kReferenceFrames * static_cast<double>(all.size());
    all.push_back(nn::grid_positions({.rows = z.size(2), .columns = z.size(3)}, {frame, 0, 0}));
  }
  return at::constant_pad_nd(at::concat(all), {0, 1});
}

at::Tensor text_positions(int64_t length) {
  return at::constant_pad_nd(at::arange(length, at::kDouble).unsqueeze(1), {3, 0});
}

}  // namespace

Flux2FeedForward::Flux2FeedForward(const weights::Scope& scope, const Flux2Config& config) {
  const nn::Split inner{config.feed_forward_width(), 1};
  const weights::Scope in = scope / "linear_in";
  linear_in = nn::ColumnParallel({{in, inner, 0, 2 * inner.units}, {in, inner, inner.units, 2 * inner.units}},
                                 config.width(), kFlux2NoBias);
  linear_out = nn::RowParallel(scope / "linear_out", inner, config.width(), kFlux2NoBias);
}

at::Tensor Flux2FeedForward::operator()(const at::Tensor& x) const {
  const std::vector<at::Tensor> both = linear_in.each(x);
  return linear_out(gated_silu(both[0], both[1]));
}

Flux2Stream::Flux2Stream(const weights::Scope& scope, const Flux2Config& config, bool is_text)
    : to_qkv(read_to_qkv(scope / "attn", config, is_text)),
      to_out(is_text ? scope / "attn" / "to_add_out" : scope / "attn" / "to_out" / 0, heads_of(config),
             config.width(), kFlux2NoBias),
      norm_q(scope / "attn" / (is_text ? "norm_added_q" : "norm_q"), config.attention_head_dim, config.eps),
      norm_k(scope / "attn" / (is_text ? "norm_added_k" : "norm_k"), config.attention_head_dim, config.eps),
      ff(scope / (is_text ? "ff_context" : "ff"), config),
      eps(config.eps) {}

nn::QueriesKeysValues Flux2Stream::before(const at::Tensor& x, const at::Tensor& angles,
                                          const Flux2Modulation& modulation) const {
  const std::vector<at::Tensor> parts = to_qkv.each(modulated(x, modulation, eps));
  return {norm_q(parts[0], angles), norm_k(parts[1], angles), parts[2]};
}

void Flux2Stream::after(at::Tensor& x, const at::Tensor& attended, const Flux2Modulation& of_attention,
                        const Flux2Modulation& of_feed_forward) const {
  ops::add_gated_(x, to_out(attended), of_attention.gate);
  ops::add_gated_(x, ff(modulated(x, of_feed_forward, eps)), of_feed_forward.gate);
}

Flux2SingleBlock::Flux2SingleBlock(const weights::Scope& scope, const Flux2Config& config)
    : to_qkv_mlp_proj(read_to_qkv_mlp(scope / "attn" / "to_qkv_mlp_proj", config)),
      to_out(scope / "attn" / "to_out", {heads_of(config), {config.feed_forward_width(), 1}}, config.width(),
             kFlux2NoBias),
      norm_q(scope / "attn" / "norm_q", config.attention_head_dim, config.eps),
      norm_k(scope / "attn" / "norm_k", config.attention_head_dim, config.eps) {}

Flux2Block::Flux2Block(const weights::Scope& scope, const Flux2Config& config, int64_t number) {
  if (number < config.num_layers) {
    image.emplace(scope / "transformer_blocks" / number, config, /*is_text=*/false);
    text.emplace(scope / "transformer_blocks" / number, config, /*is_text=*/true);
  } else {
    single.emplace(scope / "single_transformer_blocks" / (number - config.num_layers), config);
  }
}

Flux2Transformer::Embedders::Embedders(const weights::Scope& scope, const Flux2Config& config)
    : x_embedder(scope / "x_embedder", config.in_channels, config.width(), kFlux2NoBias),
      context_embedder(scope / "context_embedder", config.joint_attention_dim, config.width(), kFlux2NoBias) {
}

Flux2Transformer::DoubleModulation::DoubleModulation(const weights::Scope& scope, const Flux2Config& config)
    : image(scope / "double_stream_modulation_img" / "linear", config.width(), 6 * config.width(),
            kFlux2NoBias),
      text(scope / "double_stream_modulation_txt" / "linear", config.width(), 6 * config.width(),
           kFlux2NoBias) {}

Flux2Transformer::Output::Output(const weights::Scope& scope, const Flux2Config& config)
    : norm_out(scope / "norm_out" / "linear", config.width(), 2 * config.width(), kFlux2NoBias),
      proj_out(scope / "proj_out", config.width(), config.in_channels, kFlux2NoBias) {}

Flux2Transformer::Flux2Transformer(const weights::Scope& scope, const Flux2Config& config,
                                   const LocalBlocks& local_blocks)
    : config_(config),
      timestep_embedder_(scope.with_dtype(at::kFloat) / "time_guidance_embed" / "timestep_embedder",
                         config.timestep_guidance_channels, config.width(), 0, kFlux2NoBias),
      blocks_(local_blocks, [&](int64_t i) { return Flux2Block(scope, config, i); }),
      dtype_(scope.dtype()) {
  if (config.guidance_embeds) {
    guidance_embedder_.emplace(scope.with_dtype(at::kFloat) / "time_guidance_embed" / "guidance_embedder",
                               config.timestep_guidance_channels, config.width(), 0, kFlux2NoBias);
  }
  if (local_blocks.takes_latents()) embedders_.emplace(scope, config);
  const Range& own = local_blocks.blocks();
  if (own.begin < config.num_layers) double_modulation_.emplace(scope, config);
  if (own.end() > config.num_layers) {
    single_modulation_.emplace(scope / "single_stream_modulation" / "linear", config.width(),
                               3 * config.width(), kFlux2NoBias);
  }
  if (local_blocks.predicts()) output_.emplace(scope, config);
}

class Flux2Forward final : public Forward {
 public:
  Flux2Forward(const Flux2Transformer& model, const ForwardInputs& inputs)
      : model_(model),
        tokens_(inputs.tokens),
        length_(inputs.prompts.front().at(kTokens).size(0)),
        angles_(angles_of(picture_positions(tokens_.grid(), inputs.references), model.config_, device())),
        angles_of_text_(angles_of(text_positions(length_), model.config_, device())) {
    if (const auto scale = inputs.by_sample.find(kGuidanceScale);
        model.guidance_embedder_ && scale != inputs.by_sample.end()) {
      guidance_ =
          (*model.guidance_embedder_)(sinusoid(scale->second.to(at::kFloat).to(device()) * kFlux2Times));
    }
    std::vector<at::Tensor> by_prompt, of_samples;
    for (const Conditioning& prompt : inputs.prompts) {
      const at::Tensor& states = prompt.at(kTokens);
      TESSERA_CHECK(states.size(0) == length_, "texts of {} and {} tokens", states.size(0), length_);
      if (model.embedders_) by_prompt.push_back(model.embedders_->context_embedder(states.to(model.dtype_)));
    }
    tokens_.attach(angles_.size(0) - tokens_.grid().tokens());
    if (!model.embedders_) return;
    for (const int64_t prompt : inputs.prompt_of)
      of_samples.push_back(by_prompt[static_cast<size_t>(prompt)]);
    text_ = at::stack(of_samples);
    embed_references(inputs.references);
  }

  void begin(const Timestep& timestep) override {
    // The timestep is rounded as in diffusers.
    at::Tensor time = model_.timestep_embedder_(sinusoid(timestep.on_device / kFlux2Times * kFlux2Times));
    if (guidance_.defined()) time = time + guidance_;
    vector_ = at::silu(time).to(model_.dtype_);
    if (const auto& of = model_.double_modulation_) {
      image_modulations_ = modulations(of->image, vector_);
      text_modulations_ = modulations(of->text, vector_);
    }
    if (const auto& of = model_.single_modulation_) single_modulation_ = modulations(*of, vector_).front();
  }

  Hidden embed(const at::Tensor& latents) override {
    // Blocks write to both.
    at::Tensor x = model_.embedders_->x_embedder(nn::patchify(latents.to(model_.dtype_), {}));
    if (references_.defined()) {
      const at::Tensor own = tokens_.local_attached(references_, 1);
      x = at::concat({x, own.expand({x.size(0), -1, -1})}, 1);
    }
    return {x, tokens_.local_other(text_, 1).clone()};
  }

  void block(int64_t i, Hidden& hidden) override {
    const Flux2Block& block = model_.blocks_[i];
    block.single ? single(*block.single, hidden) : both(*block.image, *block.text, hidden);
  }

  at::Tensor head(const Hidden& hidden) override {
    // Unlike in other layers, the scale comes first.
    const at::Tensor all = model_.output_->norm_out(vector_).to(at::kFloat);
    const std::vector<at::Tensor> scale_shift = (all.size(0) == 1 ? all[0] : all).chunk(2, -1);
    const at::Tensor picture = hidden[0].narrow(1, 0, tokens_.held().tokens()).contiguous();
    const at::Tensor normed =
        ops::modulated_layer_norm(picture, scale_shift[0], scale_shift[1], model_.config_.eps);
    return nn::unpatchify(model_.output_->proj_out(normed).to(at::kFloat), tokens_.held(), {}).squeeze(2);
  }

  std::vector<Stream> streams(int64_t /*i*/) const override {
    const int64_t width = model_.config_.width();
    return {{.width = width}, {.width = width, .others = {{length_}}}};
  }

 private:
  at::Device device() const { return model_.timestep_embedder_.linear_1.weight.device(); }
  at::Tensor sinusoid(const at::Tensor& values) const {
    return nn::sinusoidal_embedding(values, model_.config_.timestep_guidance_channels);
  }

  // References that are the same for all samples are repeated for each.
  void embed_references(const std::vector<at::Tensor>& references) {
    if (references.empty()) return;
    int64_t samples = 1;
    for (const at::Tensor& z : references) samples = std::max(samples, z.size(0));
    std::vector<at::Tensor> all;
    for (const at::Tensor& z : references) {
      const at::Tensor own = z.to(device(), model_.dtype_);
      all.push_back(model_.embedders_->x_embedder(nn::patchify(own, {})).expand({samples, -1, -1}));
    }
    references_ = at::concat(all, 1);
  }

  std::pair<at::Tensor, at::Tensor> attend(const nn::QueriesKeysValues& image,
                                           const nn::QueriesKeysValues& text) {
    return tokens_.joint_attention(image, text, length_, model_.config_.attention_head_dim);
  }

  void both(const Flux2Stream& image, const Flux2Stream& text, Hidden& hidden) {
    const std::vector<Flux2Modulation>&of_image = image_modulations_, &of_text = text_modulations_;
    const auto [attended, attended_text] =
        attend(image.before(hidden[0], tokens_.local(angles_, 0), of_image[0]),
               text.before(hidden[1], tokens_.local_other(angles_of_text_, 0), of_text[0]));
    image.after(hidden[0], attended, of_image[0], of_image[1]);
    text.after(hidden[1], attended_text, of_text[0], of_text[1]);
    bound(hidden[1]);
  }

  void single(const Flux2SingleBlock& block, Hidden& hidden) {
    const int64_t image = hidden[0].size(1), text = hidden[1].size(1);
    const auto of_image = [&](const at::Tensor& y) { return y.narrow(1, 0, image); };
    const auto of_text = [&](const at::Tensor& y) { return y.narrow(1, image, text); };
    at::Tensor x = at::concat({hidden[0], hidden[1]}, 1);
    const at::Tensor angles =
        at::concat({tokens_.local(angles_, 0), tokens_.local_other(angles_of_text_, 0)});
    const std::vector<at::Tensor> parts =
        block.to_qkv_mlp_proj.each(modulated(x, single_modulation_, model_.config_.eps));
    const at::Tensor q = block.norm_q(parts[0], angles), k = block.norm_k(parts[1], angles), &v = parts[2];
    const auto [attended, attended_text] =
        attend({of_image(q), of_image(k), of_image(v)}, {of_text(q), of_text(k), of_text(v)});
    const at::Tensor inner =
        at::concat({at::concat({attended, attended_text}, 1), gated_silu(parts[3], parts[4])}, 2);
    ops::add_gated_(x, block.to_out(inner), single_modulation_.gate);
    bound(x);
    hidden = {of_image(x), of_text(x)};
  }

  const Flux2Transformer& model_;
  nn::Tokens& tokens_;
  int64_t length_;                      // L
  at::Tensor angles_, angles_of_text_;  // [N or L, D / 2, 2]
  at::Tensor guidance_;                 // fp32 [1 or B, C], or undefined
  at::Tensor text_;                     // [B, L, C], only with the first block
  at::Tensor references_;               // [1 or B, R, C], only with the first block
  // These belong to the step: [1 or B, C], and those for the attention and the feed-forward of double blocks.
  at::Tensor vector_;
  std::vector<Flux2Modulation> image_modulations_, text_modulations_;
  Flux2Modulation single_modulation_;
};

std::unique_ptr<Forward> Flux2Transformer::start(const ForwardInputs& inputs) const {
  return std::make_unique<Flux2Forward>(*this, inputs);
}

double flux2_mu(int64_t tokens, int64_t steps) {
  const auto length = static_cast<double>(tokens);
  const double of_200 = 0.00016927 * length + 0.45666666;
  if (tokens > 4300) return of_200;
  const double of_10 = 8.73809524e-05 * length + 1.89833333;
  const double slope = (of_200 - of_10) / 190.0;
  return slope * static_cast<double>(steps) + (of_200 - 200.0 * slope);
}

DenoiserShape read_flux2_shape(const std::filesystem::path& model) {
  const Flux2Config config(JsonConfig::read(part_folder(model, "transformer") / "config.json"));
  // Blocks of both kinds multiply each token by four matrices of C x C, around attention, and by three of C x
  // F.
  const double block =
      4.0 * static_cast<double>(config.width()) + 3.0 * static_cast<double>(config.feed_forward_width());
  const auto ends = static_cast<double>(config.in_channels);
  return {.heads = config.num_attention_heads,
          .blocks = config.blocks(),
          .embedding = ends / block,
          .head = ends / block,
          .latent_channels = config.in_channels,
          .sample_size = 64,
          .takes_guidance_scale = config.guidance_embeds};
}

std::unique_ptr<Denoiser> load_flux2(const std::filesystem::path& model, const LoadOptions& options,
                                     LoadStatistics& statistics) {
  PartFiles files(part_folder(model, "transformer"), weights::Library::kDiffusers, options);
  const Flux2Config config(files.config());
  const LocalBlocks local_blocks(config.blocks(), options.blocks);
  auto transformer = std::make_unique<Flux2Transformer>(files.scope(), config, local_blocks);
  // Those of a kind of blocks that the model does not have.
  std::vector<std::string_view> ignored;
  if (config.num_layers == 0) ignored.emplace_back("double_stream_modulation_");
  if (config.num_single_layers == 0) ignored.emplace_back("single_stream_modulation.");
  files.finish(statistics, local_blocks.is_all(), ignored);
  return transformer;
}

std::unique_ptr<TextEncoder> load_flux2_klein_text_encoder(const std::filesystem::path& model,
                                                           const LoadOptions& options,
                                                           LoadStatistics& statistics) {
  return std::make_unique<Qwen3TextEncoder>(
      model / "tokenizer", model / "text_encoder",
      Qwen3PromptOptions{.states = {9, 18, 27}, .enable_thinking = false, .pads = true}, options, statistics);
}

std::unique_ptr<TextEncoder> load_flux2_dev_text_encoder(const std::filesystem::path& model,
                                                         const LoadOptions& options,
                                                         LoadStatistics& statistics) {
  return std::make_unique<Qwen3TextEncoder>(model / "tokenizer", model / "text_encoder",
                                            Qwen3PromptOptions{.trunk = Trunk::kMistral3,
                                                               .states = {10, 20, 30},
                                                               .system = kFlux2DevSystem,
                                                               .left_out = "[IMG]",  // stands for a picture
                                                               .pads = true},
                                            options, statistics);
}

}  // namespace tessera::models
