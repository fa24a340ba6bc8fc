#include "engine/overflow.h"

namespace tessera::engine {
namespace {

constexpr double kLargeGuidance = 50;  // no model is used with as much

}  // namespace

std::string overflow_advice(at::ScalarType dtype) {
  if (dtype != at::kFloat)
    return fmt::format("try {} fp32; if that is no help, the weights may be damaged", field("dtype"));
  return fmt::format("try a smaller {}, or another {}", field("guidance_scale"), field("scheduler"));
}

Error overflow_error(int64_t first, int64_t steps, const Settings& settings, const Model& model) {
  const at::ScalarType dtype = *settings.request.dtype;
  const std::string since = fmt::format("the latents are not finite from step {} of {} on", first + 1, steps);
  if (settings.guidance > kLargeGuidance)
    return {ErrorKind::kUsage, field("guidance_scale"),
            fmt::format("{}, with {}; try a smaller one", since, settings.guidance)};
  if (dtype != at::kFloat)
    return {ErrorKind::kUsage, field("dtype"),
            fmt::format("{}, in {}; {}", since, dtype_name(dtype), overflow_advice(dtype))};
  return {ErrorKind::kInput, model.path().string(),
          fmt::format("{}, in fp32; {}; if that is no help, its weights are damaged", since,
                      overflow_advice(dtype))};
}

}  // namespace tessera::engine
