#include "engine/preview_matrix.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/decode.h"

namespace tessera::engine {
namespace {

constexpr int64_t kPixels = 8;  // the side of a square that becomes a pixel of a preview
constexpr int64_t kSide = 32;   // of the latents that the map is fitted to
// With more channels, 3 x 3 neighbours would give as many unknowns as there are latents.
constexpr int64_t kFewChannels = 16;

// Returns latents [1, channels, side, side] with roughly the statistics of a picture's: unit variance, and
// neighbours that are alike except for some noise. Decoders do not turn noise alone into anything meaningful.
at::Tensor random_latents(int64_t channels, int64_t side) {
  constexpr int64_t kCoarse = 4;  // latents along a side that share a colour, more or less
  constexpr double kFine = 0.3;   // the share of the noise
  const at::Generator generator = at::detail::createCPUGenerator(/*seed=*/1);
  const auto draw = [&](int64_t size) {
    return at::randn({1, channels, size, size}, generator, at::dtype(at::kFloat));
  };
  const at::Tensor coarse = at::upsample_nearest2d(draw((side + kCoarse - 1) / kCoarse), {side, side});
  return coarse + draw(side) * kFine;
}

// Adds, around the latents [1, C, h, w], the neighbours that those at the edges lack.
at::Tensor with_border(const at::Tensor& latents, int64_t neighbourhood) {
  const int64_t width = neighbourhood / 2;
  return at::replication_pad2d(latents, {width, width, width, width});
}

// Decodes a still: [1, C, h, w] to [3, H, W] in [-1, 1].
at::Tensor decode_still(const models::Decoder& decoder, const at::Tensor& latents) {
  const models::Decoder::Clip clip = decoder.clip();
  nn::Tokens whole(parallel::Grid{.rows = latents.size(2), .columns = latents.size(3)});
  const auto memory = decoder.begin_video();
  const at::Tensor frames = decoder.decode_clip(latents.expand({clip.latents, -1, -1, -1}).contiguous(),
                                                clip.first_frames.value_or(clip.frames), whole, memory.get());
  return frames[frames.size(0) / 2].to(at::kFloat).clamp(-1, 1).cpu();
}

}  // namespace

PreviewMatrix::PreviewMatrix(const models::Decoder& decoder, int64_t channels, at::Device device)
    : block_(std::max<int64_t>(decoder.scale_factor() / kPixels, 1)),
      neighbourhood_(channels <= kFewChannels ? 3 : 1) {
  const c10::InferenceMode inference_mode;
  const at::Tensor latents = random_latents(channels, kSide);
  const at::Tensor pixels = decode_still(decoder, latents.to(device));
  const at::Tensor blocks = at::adaptive_avg_pool2d(pixels, {kSide * block_, kSide * block_});
  // [n, 3 b b] and [n, C k k + 1], where n counts the latents.
  const at::Tensor colours =
      at::pixel_unshuffle(blocks.unsqueeze(0), block_).flatten(2)[0].t().to(at::kDouble);
  const at::Tensor near = at::im2col(with_border(latents, neighbourhood_), {neighbourhood_, neighbourhood_},
                                     /*dilation=*/{1, 1}, /*padding=*/{0, 0}, /*stride=*/{1, 1})[0]
                              .t()
                              .to(at::kDouble);
  const at::Tensor known = at::concat({near, at::ones({kSide * kSide, 1}, at::kDouble)}, 1);
  const at::Tensor fit = std::get<0>(
      at::linalg_solve_ex(known.t().matmul(known), known.t().matmul(colours)));  // [C k k + 1, 3 b b]
  weight_ = fit.narrow(0, 0, near.size(1))
                .t()
                .to(at::kFloat)
                .reshape({-1, channels, neighbourhood_, neighbourhood_});
  bias_ = fit[-1].to(at::kFloat);
}

Image PreviewMatrix::picture(const at::Tensor& latents, int64_t most) const {
  const c10::InferenceMode inference_mode;
  at::Tensor z = latents;
  const int64_t side = std::max<int64_t>(most / block_, 1);
  if (z.size(1) > side || z.size(2) > side) {
    const double scale = static_cast<double>(side) / static_cast<double>(std::max(z.size(1), z.size(2)));
    const auto scaled = [&](int64_t size) {
      return std::max<int64_t>(std::lround(static_cast<double>(size) * scale), 1);
    };
    z = at::adaptive_avg_pool2d(z, {scaled(z.size(1)), scaled(z.size(2))});
  }
  const at::Tensor colours = at::conv2d(with_border(z.unsqueeze(0), neighbourhood_), weight_, bias_);
  return to_image(at::pixel_shuffle(colours.nan_to_num(0, 0, 0), block_)[0]);
}

}  // namespace tessera::engine
