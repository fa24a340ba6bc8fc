// Draws the random numbers of a run as diffusers does: one CPU generator per request, for all its pictures at
// once, in fp32. A seed therefore gives the same pictures as in diffusers, on every device and any number of
// ranks, in any batch and group.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/range.h"

namespace tessera::engine {

// Copies share their generators.
class Noise {
 public:
  // A request of the batch.
  struct Share {
    uint64_t seed;
    int64_t pictures;
  };
  Noise() = default;  // of no pictures
  // On the meta device, draws have only shapes.
  explicit Noise(const std::vector<Share>& shares, at::Device device = at::kCPU);

  // Returns a copy with its own generators, which will make the same draws.
  Noise copy() const;
  // Returns a noise that makes the same draws but returns only those of some pictures.
  Noise of(const Range& pictures) const;

  // Returns the states of the generators, one for each share, and a noise that continues from such states.
  std::vector<at::Tensor> states() const;
  void set_states(const std::vector<at::Tensor>& states);

  // Draws standard normal numbers in fp32 on the device, [N, ...] for the N pictures of all shares, or for
  // some of them; the next draw continues the sequences.
  at::Tensor draw(at::IntArrayRef shape);

 private:
  at::Tensor randn(at::IntArrayRef shape, size_t share);

  at::Device device_ = at::kCPU;
  Range pictures_;
  std::vector<Share> shares_;
  std::vector<at::Generator> generators_;
};

}  // namespace tessera::engine
