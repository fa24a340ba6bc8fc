#include "engine/gather.h"

#include <algorithm>

#include "comm/collectives.h"

namespace tessera::engine {
namespace {

// [N, H, W, 3]
at::Tensor to_tensor(const std::vector<Image>& images, at::Device host) {
  const auto count = static_cast<int64_t>(images.size());
  at::Tensor pixels =
      at::empty({count, images[0].height, images[0].width, 3}, at::dtype(at::kByte).device(host));
  if (host.is_meta()) return pixels;
  uint8_t* to = pixels.mutable_data_ptr<uint8_t>();
  for (const Image& image : images) to = std::copy(image.pixels.begin(), image.pixels.end(), to);
  return pixels;
}

std::vector<Image> to_images(const at::Tensor& pixels) {
  if (pixels.is_meta())
    return std::vector<Image>(static_cast<size_t>(pixels.size(0)), {pixels.size(1), pixels.size(2), {}});
  std::vector<Image> images;
  const int64_t size = pixels[0].numel();
  for (int64_t i = 0; i < pixels.size(0); ++i) {
    const uint8_t* from = pixels.const_data_ptr<uint8_t>() + i * size;
    images.push_back({pixels.size(1), pixels.size(2), std::vector<uint8_t>(from, from + size)});
  }
  return images;
}

}  // namespace

at::Tensor gather_pictures(const at::Tensor& x, int64_t count, const comm::Group& replicas) {
  return comm::gather(x, /*dim=*/0, replicas.parts(count), 0, replicas);
}

std::vector<Image> gather_pictures(std::vector<Image> images, int64_t count, const comm::Group& replicas,
                                   at::Device host) {
  if (replicas.size == 1) return images;
  const at::Tensor pixels = gather_pictures(to_tensor(images, host), count, replicas);
  return replicas.rank == 0 ? to_images(pixels) : std::vector<Image>();
}

}  // namespace tessera::engine
