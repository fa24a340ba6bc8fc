#include "engine/decode.h"

#include <algorithm>

#include "core/field_name.h"
#include "core/log.h"

namespace tessera::engine {

at::Tensor resize_and_crop(const at::Tensor& x, int64_t height, int64_t width) {
  if (x.size(2) == height && x.size(3) == width) return x;
  const auto from_height = static_cast<double>(x.size(2)), from_width = static_cast<double>(x.size(3));
  const double ratio =
      std::max(static_cast<double>(height) / from_height, static_cast<double>(width) / from_width);
  // Truncated as diffusers does; rounding may push the exact side one pixel too low, hence the maximum.
  const int64_t scaled_height = std::max(static_cast<int64_t>(from_height * ratio), height);
  const int64_t scaled_width = std::max(static_cast<int64_t>(from_width * ratio), width);
  return at::upsample_bilinear2d(x, {scaled_height, scaled_width}, /*align_corners=*/false)
      .narrow(2, (scaled_height - height) / 2, height)
      .narrow(3, (scaled_width - width) / 2, width);
}

Image to_image(const at::Tensor& x) {
  at::Tensor unit = (x * 0.5 + 0.5).clamp(0, 1);
  if (unit.isnan().any().item<bool>()) {
    log_warning("the picture holds numbers that overflowed and are painted black; try {} fp32",
                field("dtype"));
    unit = unit.nan_to_num(0);
  }
  const at::Tensor bytes =
      (unit * 255).round().to(at::kByte).permute({1, 2, 0}).contiguous().cpu();  // [H, W, 3]
  const uint8_t* data = bytes.const_data_ptr<uint8_t>();
  return {bytes.size(0), bytes.size(1), std::vector<uint8_t>(data, data + bytes.numel())};
}

std::vector<Image> decode(const models::Decoder& decoder, const at::Tensor& z, int64_t height, int64_t width,
                          const Observer& observer) {
  std::vector<Image> images;
  for (int64_t i = 0; i < z.size(0); ++i) {
    check_cancelled(observer);
    const at::Tensor picture = decoder.decode(z.narrow(0, i, 1));  // [1, 3, H, W]
    images.push_back(to_image(resize_and_crop(picture, height, width)[0]));
    if (observer.progressed) observer.progressed(Stage::kDecode, i + 1, z.size(0));
  }
  return images;
}

}  // namespace tessera::engine
