#include "engine/noise.h"

#include <ATen/CPUGeneratorImpl.h>

namespace tessera::engine {

Noise::Noise(const std::vector<Share>& shares) : shares_(shares) {
  for (const Share& share : shares) generators_.push_back(at::detail::createCPUGenerator(share.seed));
}

at::Tensor Noise::draw(at::IntArrayRef shape) {
  if (shares_.size() == 1) return at::randn(shape, generators_[0], at::kFloat);
  std::vector<at::Tensor> parts;
  std::vector<int64_t> part = shape.vec();
  for (size_t i = 0; i < shares_.size(); ++i) {
    part[0] = shares_[i].pictures;
    parts.push_back(at::randn(part, generators_[i], at::kFloat));
  }
  return at::concat(parts);
}

}  // namespace tessera::engine
