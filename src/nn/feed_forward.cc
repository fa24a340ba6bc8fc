#include "nn/feed_forward.h"

#include "ops/activations.h"

namespace tessera::nn {

GegluFeedForward::GegluFeedForward(const weights::Scope& scope, int64_t width, int64_t inner)
    : in_({{scope / "net" / 0 / "proj", {inner, 1}, 0, 2 * inner},
           {scope / "net" / 0 / "proj", {inner, 1}, inner, 2 * inner}},
          width),
      out_(scope / "net" / 2, {inner, 1}, width) {}

at::Tensor GegluFeedForward::operator()(const at::Tensor& x) const {
  const std::vector<at::Tensor> both = in_.each(x);
  return out_(ops::gated_gelu(both[0], both[1]));
}

}  // namespace tessera::nn
