#include "plan/hardware/stdit_pair.h"

#include <algorithm>

#include "plan/hardware/mapping.h"

namespace tessera::plan {
namespace {

// STDiT3-XL.
constexpr int64_t kHidden = 1152, kHeads = 16, kMlp = 4 * kHidden, kPairs = 28, kTextTokens = 300;
constexpr int64_t kLatentScale = 8, kPatch = 2;
// Its VAE makes five latent frames from a clip of 17, and one from up to four of the remaining frames.
constexpr int64_t kClip = 17, kLatentClip = 5, kTimeFactor = 4;

// Operations for each element.
constexpr double kNorm = 4, kModulate = 2, kRotary = 4, kGate = 2, kAdd = 1;

// A list under construction; names get a prefix.
class Operators {
 public:
  explicit Operators(const StditSizes& sizes) : sizes_(sizes) {}

  void begin(std::string prefix, int64_t count = 1) {
    prefix_ = std::move(prefix);
    count_ = count;
  }
  void add(const std::string& name, Work work) { list_.push_back({prefix_ + name, work, count_}); }

  void norm(const StditSizes::Attention& part) {
    add("norm", VectorWork{part.rows(), sizes_.hidden, kNorm, 1, 0});
  }
  void modulate(const StditSizes::Attention& part, int64_t weights) {
    add("modulate", VectorWork{part.rows(), sizes_.hidden, kModulate, 1, weights});
  }
  void residual(const StditSizes::Attention& part, double operations, int64_t inputs, int64_t weights) {
    add("residual", VectorWork{part.rows(), sizes_.hidden, operations, inputs, weights});
  }
  void projections(const StditSizes::Attention& part) {
    add("q_proj", GemmWork{part.rows(), sizes_.hidden, sizes_.projected, 0});
    add("k_proj", GemmWork{part.batch * part.keys, sizes_.hidden, sizes_.projected, 0});
    add("v_proj", GemmWork{part.batch * part.keys, sizes_.hidden, sizes_.projected, 0});
  }
  void head_norm(const std::string& name, const StditSizes::Attention& part, double operations) {
    VectorWork work{part.rows() * sizes_.heads, sizes_.head_dim, operations, 1, sizes_.head_dim};
    work.is_by_head = operations == kNorm;
    add(name, work);
  }
  void attention(const StditSizes::Attention& part) {
    add("attention", AttentionWork{part.batch, sizes_.heads, part.queries, part.keys, sizes_.head_dim});
  }
  void output_projection(const StditSizes::Attention& part) {
    add("o_proj", GemmWork{part.rows(), sizes_.projected, sizes_.hidden, 0});
  }
  void feed_forward(const StditSizes::Attention& part) {
    add("up", GemmWork{part.rows(), sizes_.up_input, sizes_.up_output, kActivationOperations});
    add("down", GemmWork{part.rows(), sizes_.down_input, sizes_.down_output, 0});
  }

  std::vector<Operator> take() { return std::move(list_); }

 private:
  const StditSizes& sizes_;
  std::string prefix_;
  int64_t count_ = 1;
  std::vector<Operator> list_;
};

}  // namespace

TokenGrid token_grid(const Video& video) {
  const int64_t clips = video.frames / kClip, left = video.frames % kClip;
  const int64_t frames = clips * kLatentClip + divide_up(left, kTimeFactor);
  const auto patches = [](int64_t pixels) { return divide_up(pixels / kLatentScale, kPatch); };
  return {frames, patches(video.height), patches(video.width)};
}

StditSizes stdit_xl_sizes(const Video& video, const TokenGrid& grid, int64_t dies) {
  const int64_t frames = divide_up(grid.frames, dies), positions = divide_up(grid.of_frame(), dies);
  StditSizes sizes;
  sizes.spatial = {video.batch * frames, grid.of_frame(), grid.of_frame()};
  sizes.temporal = {video.batch * positions, grid.frames, grid.frames};
  sizes.cross = {video.batch, std::max(frames * grid.of_frame(), positions * grid.frames), kTextTokens};
  sizes.hidden = sizes.projected = kHidden;
  sizes.heads = kHeads;
  sizes.head_dim = kHidden / kHeads;
  sizes.up_input = sizes.down_output = kHidden;
  sizes.up_output = sizes.down_input = kMlp;
  sizes.pairs = kPairs;
  return sizes;
}

double exchanged_bytes(const Video& video, const TokenGrid& grid, int64_t dies, int64_t element_bytes) {
  const double activations = static_cast<double>(video.batch * grid.tokens() * kHidden * element_bytes);
  const auto number = static_cast<double>(dies);
  return static_cast<double>(kExchanges) * activations * (number - 1) / (number * number);
}

std::vector<Operator> stdit_pair(const StditSizes& sizes) {
  Operators list(sizes);
  for (const bool is_spatial : {true, false}) {
    const StditSizes::Attention& part = is_spatial ? sizes.spatial : sizes.temporal;
    list.begin(is_spatial ? "spatial_" : "temporal_");
    list.norm(part);
    list.modulate(part, 2 * sizes.hidden);
    list.projections(part);
    list.head_norm("q_norm", part, kNorm);
    list.head_norm("k_norm", part, kNorm);
    if (!is_spatial) {
      list.head_norm("q_rope", part, kRotary);
      list.head_norm("k_rope", part, kRotary);
    }
    list.attention(part);
    list.output_projection(part);
    list.residual(part, kGate, 2, sizes.hidden);
  }
  list.begin("cross_", 2);
  list.projections(sizes.cross);
  list.attention(sizes.cross);
  list.output_projection(sizes.cross);
  list.residual(sizes.cross, kAdd, 2, 0);
  list.begin("mlp_", 2);
  list.norm(sizes.cross);
  list.modulate(sizes.cross, 2 * sizes.hidden);
  list.feed_forward(sizes.cross);
  list.residual(sizes.cross, kGate, 2, sizes.hidden);
  return list.take();
}

}  // namespace tessera::plan
