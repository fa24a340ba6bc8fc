#include "tests/models/toys/double_single.h"

#include "nn/query_key_norm.h"
#include "nn/rotary.h"
#include "ops/modulate.h"
#include "tests/models/toys/parts.h"

namespace tessera::models::toys {
namespace {

constexpr int64_t kDoubleBlocks = 2, kInner = 3 * kWidth;
// Every picture is the third of those that the model could see.
constexpr std::array<double, 3> kOrigin = {2, 0, 0};
const std::vector<nn::RotaryAxis> kAxes = {{2}, {2}, {4}};

// Shift, scale and gate of a layer, from the vector of a sample.
struct Modulation {
  explicit Modulation(const weights::Scope& scope) : linear(scope, kWidth, 3 * kWidth) {}
  std::vector<at::Tensor> operator()(const at::Tensor& vector) const { return linear(vector).chunk(3, 1); }
  ops::Linear linear;
};

struct Side {
  explicit Side(const weights::Scope& scope)
      : modulation(scope / "modulation"),
        qkv(read_qkv(scope)),
        out(read_out(scope)),
        norm_q(scope / "norm_q", kDepth, 1e-6),
        norm_k(scope / "norm_k", kDepth, 1e-6),
        feed_forward(scope / "ff") {}

  Modulation modulation;
  nn::ColumnParallel qkv;
  nn::RowParallel out;
  nn::HeadNorm norm_q, norm_k;
  FeedForward feed_forward;
};

struct SingleBlock {
  explicit SingleBlock(const weights::Scope& scope)
      : modulation(scope / "modulation"),
        in({{scope / "to_q", kQueries},
            {scope / "to_k", kKeys},
            {scope / "to_v", kKeys},
            {scope / "mlp", {kInner, 1}}},
           kWidth),
        out(scope / "out", {kQueries, {kInner, 1}}, kWidth),
        norm_q(scope / "norm_q", kDepth, 1e-6),
        norm_k(scope / "norm_k", kDepth, 1e-6) {}

  static constexpr nn::Split kQueries{kKeyHeads, kHeads / kKeyHeads* kDepth}, kKeys{kKeyHeads, kDepth};
  Modulation modulation;
  nn::ColumnParallel in;
  nn::RowParallel out;
  nn::HeadNorm norm_q, norm_k;
};

struct Block {
  Block(const weights::Scope& scope, bool is_double) {
    if (is_double) {
      image.emplace(scope / "image");
      text.emplace(scope / "text");
    } else {
      single.emplace(scope);
    }
  }
  std::optional<Side> image, text;
  std::optional<SingleBlock> single;
};

struct Weights {
  Weights(const weights::Scope& scope, const LocalBlocks& local_blocks)
      : image_in(scope / "image_in", kChannels, kWidth),
        text_in(scope / "text_in", kPrompt, kWidth),
        pooled_in(scope / "pooled_in", kPrompt, kWidth),
        blocks(local_blocks, [&](int64_t i) { return Block(scope / "blocks" / i, i < kDoubleBlocks); }),
        out(scope / "out", kWidth, kChannels) {}
  ops::Linear image_in, text_in, pooled_in;
  Blocks<Block> blocks;
  ops::Linear out;
};

class DoubleSingleForward final : public Forward {
 public:
  DoubleSingleForward(const Weights& weights, const ForwardInputs& inputs)
      : weights_(weights),
        tokens_(inputs.tokens),
        prompts_(inputs.sequences_of_samples(kTokens)),
        text_(weights.text_in(prompts_.tokens)),
        pooled_(weights.pooled_in(inputs.of_samples(kPooled))),
        guidance_(inputs.by_sample.at(kGuidanceScale).to(at::kFloat).unsqueeze(1).to(text_.device())),
        angles_(nn::rotary_table(nn::grid_positions(inputs.tokens.grid(), kOrigin), kAxes, text_.device())) {}

  void begin(const Timestep& timestep) override {
    vector_ = pooled_ * std::cos(timestep.value) + at::cos(guidance_);
  }
  Hidden embed(const at::Tensor& latents) override {
    return {weights_.image_in(nn::patchify(latents, {})), tokens_.local_other(text_, prompts_.lengths)};
  }
  void block(int64_t i, Hidden& hidden) override {
    const Block& block = weights_.blocks[i];
    block.single ? single(*block.single, hidden) : both(*block.image, *block.text, hidden);
  }
  at::Tensor head(const Hidden& hidden) override {
    return nn::unpatchify(weights_.out(normed(hidden[0])), tokens_.held(), {}).squeeze(2);
  }
  std::vector<Stream> streams(int64_t /*i*/) const override {
    return {{.width = kWidth}, {.width = kWidth, .others = {prompts_.lengths}}};
  }

 private:
  at::Tensor turned(const at::Tensor& x) const { return nn::rotate(x, tokens_.local(angles_, 0)); }

  void both(const Side& image, const Side& text, Hidden& hidden) {
    const auto side = [&](const Side& of, const at::Tensor& x, at::Tensor& gate) -> nn::QueriesKeysValues {
      const std::vector<at::Tensor> shift_scale_gate = of.modulation(vector_);
      gate = shift_scale_gate[2];
      const std::vector<at::Tensor> parts =
          of.qkv.each(ops::modulated_layer_norm(x, shift_scale_gate[1], shift_scale_gate[0], 1e-6));
      return {of.norm_q(parts[0]), of.norm_k(parts[1]), parts[2]};
    };
    at::Tensor gate, gate_of_text;
    nn::QueriesKeysValues own = side(image, hidden[0], gate);
    own = {turned(own.q), turned(own.k), own.v};
    const auto [of_image, of_text] =
        tokens_.joint_attention(own, side(text, hidden[1], gate_of_text), prompts_.lengths, kDepth);
    ops::add_gated_(hidden[0], image.out(of_image), gate);
    ops::add_gated_(hidden[1], text.out(of_text), gate_of_text);
    hidden[0] = hidden[0] + image.feed_forward(normed(hidden[0]));
    hidden[1] = hidden[1] + text.feed_forward(normed(hidden[1]));
  }

  void single(const SingleBlock& block, Hidden& hidden) {
    const std::vector<at::Tensor> shift_scale_gate = block.modulation(vector_);
    at::Tensor x = at::concat({hidden[1], hidden[0]}, 1);  // the local text, then the local picture
    const std::vector<at::Tensor> parts =
        block.in.each(ops::modulated_layer_norm(x, shift_scale_gate[1], shift_scale_gate[0], 1e-6));
    const at::Tensor q = block.norm_q(parts[0]), k = block.norm_k(parts[1]);
    const int64_t text = hidden[1].size(1), image = hidden[0].size(1);
    const auto of_text = [&](const at::Tensor& y) { return y.narrow(1, 0, text); };
    const auto of_image = [&](const at::Tensor& y) { return y.narrow(1, text, image); };
    const auto [attended, attended_text] =
        tokens_.joint_attention({turned(of_image(q)), turned(of_image(k)), of_image(parts[2])},
                                {of_text(q), of_text(k), of_text(parts[2])}, prompts_.lengths, kDepth);
    const at::Tensor both = at::concat({at::concat({attended_text, attended}, 1), at::silu(parts[3])}, 2);
    ops::add_gated_(x, block.out(both), shift_scale_gate[2]);
    hidden = {of_image(x).contiguous(), of_text(x).contiguous()};
  }

  const Weights& weights_;
  nn::Tokens& tokens_;
  Sequences prompts_;
  at::Tensor text_, pooled_, guidance_, angles_, vector_;
};

}  // namespace

std::unique_ptr<Denoiser> load_double_single(const weights::Scope& scope, const LocalBlocks& local_blocks) {
  return std::make_unique<ToyDenoiser<Weights, DoubleSingleForward>>(scope, local_blocks);
}

Family double_single_family() {
  return {.class_name = "DoubleSinglePipeline",
          .title = "double and single blocks",
          .default_steps = 3,
          .default_guidance = 3.5,
          .parts = {{"text_encoder", "toys", {"PooledOfText"}},
                    {"text_encoder_2", "toys", {"TokensOfText"}},
                    {"transformer", "toys", {"DoubleSingle"}},
                    {"vae", "toys", {"Repeater"}}},
          .default_max_sequence_length = 6,
          .own_fields = {"prompt_2", "max_sequence_length"},
          .lone = {},
          .has_single_files = false,
          .overrides_scheduler_file = false,
          .takes_sample_of_single_step = false,
          .bin_resolution = no_binning,
          .read_shape =
              [](const std::filesystem::path&) {
                return DenoiserShape{.heads = kKeyHeads,
                                     .blocks = kBlocks,
                                     .latent_channels = kChannels,
                                     .sample_size = 11,
                                     .takes_guidance_scale = true};
              },
          .read_latent_scale = [](const std::filesystem::path&,
                                  int64_t) { return LatentScale{.pixels = Repeater::kScale}; },
          .text_encoders = {{"text_encoder", load_toy_part<PooledOfText>},
                            {"text_encoder_2", load_toy_part<TokensOfText>}},
          .load_denoiser =
              [](const std::filesystem::path&, const LoadOptions& options, LoadStatistics&) {
                RandomWeights weights;
                return load_double_single({weights, options.placement}, LocalBlocks(kBlocks, options.blocks));
              },
          .load_decoder = load_toy_part<Repeater, Decoder>};
}

namespace naive {
namespace {

// The layers of one sequence in one block, by the names of their weights.
struct Layers {
  Network& network;
  std::string name;
  at::Tensor vector;

  at::Tensor modulation(int64_t n) const {
    return network.linear(name + "modulation", vector, 3 * kWidth)
        .slice(1, n * kWidth, (n + 1) * kWidth)
        .unsqueeze(1);
  }
  at::Tensor modulated(const at::Tensor& x) const {
    const at::Tensor centred = x - x.mean(-1, true);
    return centred / at::sqrt(centred.square().mean(-1, true) + 1e-6) * (1 + modulation(1)) + modulation(0);
  }
  at::Tensor queries_or_keys(const char* part, const at::Tensor& x, int64_t heads) const {
    const at::Tensor y = network.linear(name + "to_" + part, x, heads * kDepth);
    const at::Tensor by_head = y.reshape({y.size(0), y.size(1), -1, kDepth});
    return (network.rms(by_head) * network.weight(name + "norm_" + part + ".weight", {kDepth}))
        .reshape(y.sizes());
  }
  at::Tensor values(const at::Tensor& x) const {
    return network.linear(name + "to_v", x, kKeyHeads * kDepth);
  }
};

// Rotates as Network::turn(), with the first axis at kOrigin.
at::Tensor turned(const Network& network, const at::Tensor& x) {
  const at::Tensor pairs = x.to(at::kDouble).reshape({x.size(0), x.size(1), -1, kDepth / 2, 2});
  const at::Tensor first = at::view_as_complex(pairs.narrow(3, 0, 1).contiguous()) *
                           at::polar(at::ones({1}, at::kDouble), at::full({1}, kOrigin[0], at::kDouble));
  const at::Tensor all = at::concat({at::view_as_real(first), pairs.narrow(3, 1, kDepth / 2 - 1)}, 3);
  return network.turn(all.reshape(x.sizes()), 2, 2, 4);
}

}  // namespace

at::Tensor double_single(Network& network, const at::Tensor& x, double timestep,
                         const std::vector<int64_t>& prompt_of) {
  at::Tensor image = network.linear("image_in", x, kWidth);
  at::Tensor text = network.linear("text_in", network.padded(prompt_of), kWidth);
  const int64_t length = text.size(1);
  const at::Tensor vector =
      network.linear("pooled_in", network.of_samples(prompt_of, kPooled), kWidth) * std::cos(timestep) +
      std::cos(network.problem_.guidance_input);
  // Over text and picture, of which the queries and keys are already normed.
  const auto attend = [&](int64_t block, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const Memory::Entry& seen =
        network.remember(block, 0, turned(network, k.slice(1, length)), v.slice(1, length));
    const Memory::Entry& text_seen =
        network.remember_text(block, prompt_of, k.slice(1, 0, length), v.slice(1, 0, length));
    const at::Tensor queries = at::concat({q.slice(1, 0, length), turned(network, q.slice(1, length))}, 1);
    const at::Tensor mask = at::concat({text_seen.seen, seen.seen.expand({x.size(0), -1})}, 1).unsqueeze(1);
    return network.attend(queries, at::concat({text_seen.k, seen.k}, 1), at::concat({text_seen.v, seen.v}, 1),
                          mask.expand({-1, queries.size(1), -1}));
  };
  for (int64_t i = 0; i < kBlocks; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    if (i < kDoubleBlocks) {
      const Layers of_image{network, block + "image.", vector}, of_text{network, block + "text.", vector};
      const at::Tensor a = of_text.modulated(text), b = of_image.modulated(image);
      const auto of_both = [&](const char* part, int64_t heads) {
        return at::concat({of_text.queries_or_keys(part, a, heads), of_image.queries_or_keys(part, b, heads)},
                          1);
      };
      const at::Tensor attended = attend(i, of_both("q", kHeads), of_both("k", kKeyHeads),
                                         at::concat({of_text.values(a), of_image.values(b)}, 1));
      image = image + of_image.modulation(2) *
                          network.linear(block + "image.to_out", attended.slice(1, length), kWidth);
      text = text + of_text.modulation(2) *
                        network.linear(block + "text.to_out", attended.slice(1, 0, length), kWidth);
      image = image + network.feed_forward(block + "image.ff", image);
      text = text + network.feed_forward(block + "text.ff", text);
      continue;
    }
    const Layers layers{network, block, vector};
    const at::Tensor all = at::concat({text, image}, 1), y = layers.modulated(all);
    const at::Tensor attended = attend(i, layers.queries_or_keys("q", y, kHeads),
                                       layers.queries_or_keys("k", y, kKeyHeads), layers.values(y));
    const at::Tensor inner = at::silu(network.linear(block + "mlp", y, kInner));
    const at::Tensor next =
        all + layers.modulation(2) * network.linear(block + "out", at::concat({attended, inner}, 2), kWidth);
    text = next.slice(1, 0, length);
    image = next.slice(1, length);
  }
  return network.linear("out", network.rms(image), kChannels);
}

}  // namespace naive
}  // namespace tessera::models::toys
