#include "engine/decode.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "comm/collectives.h"
#include "core/host.h"
#include "core/log.h"
#include "engine/overflow.h"
#include "engine/tiled_decode.h"

namespace tessera::engine {

at::Tensor resize_and_crop(const at::Tensor& x, int64_t height, int64_t width) {
  if (x.size(2) == height && x.size(3) == width) return x;
  const auto from_height = static_cast<double>(x.size(2)), from_width = static_cast<double>(x.size(3));
  const double ratio =
      std::max(static_cast<double>(height) / from_height, static_cast<double>(width) / from_width);
  // The size is truncated as in diffusers; rounding may make the exact side one pixel too low, hence the
  // maximum.
  const int64_t scaled_height = std::max(static_cast<int64_t>(from_height * ratio), height);
  const int64_t scaled_width = std::max(static_cast<int64_t>(from_width * ratio), width);
  return at::upsample_bilinear2d(x, {scaled_height, scaled_width}, /*align_corners=*/false)
      .narrow(2, (scaled_height - height) / 2, height)
      .narrow(3, (scaled_width - width) / 2, width);
}

at::Tensor to_pixels(const at::Tensor& x, at::ScalarType dtype) {
  at::Tensor unit = (x * 0.5 + 0.5).clamp(0, 1);
  if (const at::Tensor has_nan = nan_mask(unit).any(); !x.is_meta() && has_nan.item<bool>()) {
    log_warning("the image holds numbers that overflowed in the decoder and are black; {}",
                overflow_advice(dtype));
    unit = unit.nan_to_num(0);
  }
  const at::Tensor pixels = (unit * 255).round().to(at::kByte).permute({1, 2, 0}).contiguous();
  return pixels.is_meta() ? pixels : pixels.cpu();
}

namespace {

// Throws on every rank of the group if an image, of which each rank has some rows or none, holds only NaNs.
void require_numbers(const at::Tensor& x, const DecodeOptions& options, const comm::Group& group = {}) {
  if (!options.overflow) return;
  const at::Tensor has_numbers = x.eq(x).any().to(at::kFloat).view({1});
  const at::Tensor ranks = comm::all_reduce(has_numbers, group);  // how many ranks have numbers
  if (!ranks.is_meta() && ranks.item<float>() == 0) throw options.overflow();
}

}  // namespace

Image image_of(const at::Tensor& pixels) {
  if (pixels.is_meta()) return {pixels.size(0), pixels.size(1), {}};
  const uint8_t* data = pixels.const_data_ptr<uint8_t>();
  return {pixels.size(0), pixels.size(1), std::vector<uint8_t>(data, data + pixels.numel())};
}

int64_t memory_of(at::Device device) {
  return static_cast<int64_t>(
      device.is_cpu() || device.is_meta()
          ? total_memory()
          : c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
}

ops::ConvBlocks automatic_blocks(at::Device device, int64_t ranks) {
  constexpr int64_t kPart = 16;  // copies take little memory compared with the tensors themselves
  return {.bytes = std::max<int64_t>(memory_of(device) / kPart / ranks, 1)};
}

Image to_image(const at::Tensor& x, at::ScalarType dtype) {
  return image_of(to_pixels(x, dtype));
}

at::Tensor decode_pixels(const models::Decoder& decoder, const at::Tensor& z, int64_t height, int64_t width,
                         const comm::Group& group, const DecodeOptions& options) {
  const ops::ConvBlocks blocks = options.block_rows ? ops::ConvBlocks{.rows = *options.block_rows}
                                                    : automatic_blocks(z.device(), group.size);
  const auto fitted = [&](const at::Tensor& whole) {
    return to_pixels(resize_and_crop(whole, height, width)[0], options.dtype);
  };
  if (options.tiled && has_several_tiles(decoder, z)) {
    const at::Tensor whole = decode_tiled(decoder, z, group, blocks);
    if (!whole.defined()) return {};
    require_numbers(whole, options);
    return fitted(whole);
  }
  const parallel::Cut cut({.rows = z.size(2), .columns = z.size(3)}, parallel::GridAxis::kRows, 1, group.size,
                          1, group.shares);
  std::vector<Range> pixel_rows;
  for (int64_t rank = 0; rank < group.size; ++rank)
    pixel_rows.push_back(times(cut.part(0, rank), decoder.scale_factor()));
  const Range own = cut.part(0, group.rank);
  nn::Tokens tokens(cut, {.ring = group, .all = group});
  tokens.limit_convolutions(blocks);
  const at::Tensor rows = decoder.decode(z.narrow(2, own.begin, own.length), tokens)[0];
  require_numbers(rows, options, group);
  if (pixel_rows.back().end() == height && z.size(3) * decoder.scale_factor() == width)
    return comm::gather(to_pixels(rows, options.dtype), /*dim=*/0, pixel_rows, 0, group);
  const at::Tensor whole = comm::gather(rows, /*dim=*/1, pixel_rows, 0, group);
  return whole.defined() ? fitted(whole.unsqueeze(0)) : at::Tensor();
}

std::vector<Image> decode(const models::Decoder& decoder, const at::Tensor& z, int64_t height, int64_t width,
                          const Observer& observer, const comm::Group& group, const DecodeOptions& options) {
  std::vector<Image> images;
  for (int64_t i = 0; i < z.size(0); ++i) {
    check_cancelled(observer);
    const at::Tensor pixels = decode_pixels(decoder, z.narrow(0, i, 1), height, width, group, options);
    if (pixels.defined()) {
      images.push_back(image_of(pixels));
      if (options.decoded) options.decoded(images);
    }
    if (observer.progressed) observer.progressed(Phase::kDecode, i + 1, z.size(0));
  }
  return images;
}

}  // namespace tessera::engine
