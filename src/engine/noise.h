// The random numbers of a run, as diffusers draws them: one CPU generator, whole batches at once, fp32. So a
// seed gives the same picture here and there, on every device and on any number of ranks.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace tessera::engine {

class Noise {
 public:
  explicit Noise(uint64_t seed);

  // Standard normal, fp32 on the CPU; the next draw continues the sequence.
  at::Tensor draw(at::IntArrayRef shape);

 private:
  at::Generator generator_;
};

}  // namespace tessera::engine
