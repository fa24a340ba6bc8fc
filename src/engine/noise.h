// The random numbers of a run, as diffusers draws them: one CPU generator for a request, all its pictures at
// once, fp32. So a seed gives the same pictures here and there, on every device, on any number of ranks and
// in whatever company.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::engine {

class Noise {
 public:
  // A request in the batch.
  struct Share {
    uint64_t seed;
    int64_t pictures;
  };
  explicit Noise(const std::vector<Share>& shares);

  // Standard normal, fp32 on the CPU; the next draw continues the sequences. Of several shares: [N, ...], N
  // pictures of all.
  at::Tensor draw(at::IntArrayRef shape);

 private:
  std::vector<Share> shares_;
  std::vector<at::Generator> generators_;
};

}  // namespace tessera::engine
