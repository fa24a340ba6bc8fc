#include "nn/rotary.h"

#include <ATen/Functions.h>

#include "ops/heads.h"

namespace tessera::nn {

at::Tensor rotary_table(const parallel::Grid& grid, const RotaryAxes& axes, at::Device device) {
  std::vector<at::Tensor> angles;  // [frames, rows, columns, features / 2]
  const auto add = [&](int64_t count, int64_t features, int64_t axis) {
    if (features == 0) return;
    const at::Tensor exponent = at::arange(0, features, 2, at::kDouble) / static_cast<double>(features);
    const at::Tensor frequency = at::pow(axes.theta, exponent).reciprocal();
    std::vector<int64_t> shape{1, 1, 1, features / 2};
    shape[static_cast<size_t>(axis)] = count;
    angles.push_back(at::outer(at::arange(count, at::kDouble), frequency)
                         .view(shape)
                         .expand({grid.frames, grid.rows, grid.columns, features / 2}));
  };
  add(grid.frames, axes.frames, 0);
  add(grid.rows, axes.rows, 1);
  add(grid.columns, axes.columns, 2);
  const at::Tensor all = at::concat(angles, 3).flatten(0, 2);
  return at::stack({at::cos(all), at::sin(all)}, 2).to(device, at::kFloat);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& table) {
  return ops::prepare_heads(x, {.angles = table});
}

}  // namespace tessera::nn
