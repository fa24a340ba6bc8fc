#include "engine/noise.h"

#include <ATen/CPUGeneratorImpl.h>

namespace tessera::engine {

Noise::Noise(uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {}

at::Tensor Noise::draw(at::IntArrayRef shape) {
  return at::randn(shape, generator_, at::kFloat);
}

}  // namespace tessera::engine
