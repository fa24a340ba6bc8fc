#include "nn/rotary.h"

#include <ATen/Functions.h>

#include "core/error.h"

namespace tessera::nn {

at::Tensor grid_positions(const parallel::Grid& grid, const std::array<double, 3>& first) {
  const auto count = [](int64_t length, double from) { return at::arange(length, at::kDouble) + from; };
  const std::vector<at::Tensor> axes = at::meshgrid(
      {count(grid.frames, first[0]), count(grid.rows, first[1]), count(grid.columns, first[2])}, "ij");
  return at::stack(axes, 3).flatten(0, 2);
}

at::Tensor rotary_table(const at::Tensor& positions, const std::vector<RotaryAxis>& axes, at::Device device,
                        const RotaryRounding& rounding) {
  TESSERA_CHECK(positions.dim() == 2 && positions.size(1) == static_cast<int64_t>(axes.size()),
                "positions on {} axes do not fit {} axes", positions.size(-1), axes.size());
  std::vector<at::Tensor> angles;  // [n, features / 2]
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto& [features, theta] = axes[i];
    const at::Tensor exponent =
        at::arange(0, features, 2, rounding.frequencies) / static_cast<double>(features);
    const at::Tensor frequency = at::pow(theta, exponent).reciprocal();
    // In fp64, the product of two fp32 numbers is exact, so it is rounded only once.
    angles.push_back(
        at::outer(positions.select(1, static_cast<int64_t>(i)).to(at::kDouble), frequency.to(at::kDouble)));
  }
  const at::Tensor all = at::concat(angles, 1).to(rounding.angles);
  return at::stack({at::cos(all), at::sin(all)}, 2).to(device, at::kFloat);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& table, RotaryPairs pairs) {
  return ops::prepare_heads(x, {.angles = table, .pairs = pairs});
}

}  // namespace tessera::nn
