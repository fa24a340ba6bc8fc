#include "engine/noise.h"

#include <ATen/CPUGeneratorImpl.h>

#include "core/error.h"

namespace tessera::engine {

Noise::Noise(const std::vector<Share>& shares, at::Device device) : device_(device), shares_(shares) {
  for (const Share& share : shares) {
    generators_.push_back(at::detail::createCPUGenerator(share.seed));
    pictures_.length += share.pictures;
  }
}

Noise Noise::copy() const {
  Noise copy = *this;
  for (at::Generator& generator : copy.generators_) generator = generator.clone();
  return copy;
}

std::vector<at::Tensor> Noise::states() const {
  std::vector<at::Tensor> states;
  for (const at::Generator& generator : generators_) states.push_back(generator.get_state());
  return states;
}

void Noise::set_states(const std::vector<at::Tensor>& states) {
  TESSERA_CHECK(states.size() == generators_.size(), "{} states for {} generators", states.size(),
                generators_.size());
  for (size_t i = 0; i < states.size(); ++i) generators_[i].set_state(states[i]);
}

Noise Noise::of(const Range& pictures) const {
  Noise part = copy();
  part.pictures_ = {pictures_.begin + pictures.begin, pictures.length};
  return part;
}

at::Tensor Noise::randn(at::IntArrayRef shape, size_t share) {
  if (device_.is_meta()) return at::randn(shape, at::dtype(at::kFloat).device(device_));
  return at::randn(shape, generators_[share], at::kFloat);
}

// A share is drawn whole, whichever of its pictures are needed, because they all come from one sequence.
at::Tensor Noise::draw(at::IntArrayRef shape) {
  if (shares_.size() == 1 && pictures_.length == shares_[0].pictures) return randn(shape, 0);
  TESSERA_CHECK(shape[0] == pictures_.length, "noise of {} pictures for {}", pictures_.length, shape[0]);
  std::vector<at::Tensor> parts;
  std::vector<int64_t> sizes = shape.vec();
  int64_t begin = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Range share{begin, shares_[i].pictures};
    begin = share.end();
    const Range own = overlap(share, pictures_);
    if (own.length == 0) continue;  // each share has a generator of its own
    sizes[0] = share.length;
    const at::Tensor whole = randn(sizes, i);
    parts.push_back(whole.narrow(0, own.begin - share.begin, own.length));
  }
  return at::concat(parts);  // a copy, so that the noise of other pictures is freed
}

}  // namespace tessera::engine
