// How a convolution reports itself to the hooks of ops/operation.h.
#include "ops/conv.h"
#include "ops/operation.h"

namespace tessera::ops {

void Conv2d::record_operation(at::IntArrayRef x, const at::Tensor& y) const {
  const int64_t taps = kernel[0] * kernel[1];
  const std::array<int64_t, 4> weights = {out_channels, in_channels, kernel[0], kernel[1]};
  record("conv2d", role, y, 2 * y.numel() * in_channels * taps,
         {Operand(x, y.scalar_type()), Operand(weights, y.scalar_type()), bias});
}

void Conv2d::record_values(const ConvInput& input, const at::Tensor& sum, const at::Tensor& y) const {
  record_dataflow([&] {
    const Halo halo = input.halo.value_or(Halo());
    const ChannelMaps maps = input.maps != nullptr ? *input.maps : ChannelMaps();
    return Dataflow{"conv2d",
                    role,
                    {input.x, weight, bias, sum, halo.above, halo.below, maps.mean, maps.scale, maps.bias},
                    {y},
                    {{"stride", stride},
                     {"padding_rows", padding[0]},
                     {"padding_columns", padding[1]},
                     {"silu", input.norm != nullptr && input.norm->activation == Activation::kSilu}}};
  });
}

}  // namespace tessera::ops
