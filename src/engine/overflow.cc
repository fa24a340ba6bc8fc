#include "engine/overflow.h"

#include <optional>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/denoiser_file.h"

namespace tessera::engine {
namespace {

constexpr double kLargeGuidance = 50;  // larger than anyone uses

std::vector<weights::Checkpoint> checkpoints_of(const Model& model) {
  std::vector<weights::Checkpoint> all;
  if (model.single_file) all.emplace_back(model.single_file, weights::named_tensors({model.single_file}));
  for (const models::PipelinePart& part : model.parts) {
    if (part.name.starts_with("tokenizer")) continue;
    if (model.single_file && weights::is_in_single_file(model.single_file->header(), part.name)) continue;
    all.emplace_back(model.folder / part.name, weights::library_named(part.library), model.variant);
  }
  return all;
}

// Reads all weights, and returns the error for the first that is not finite.
std::optional<Error> find_damage(const Model& model) {
  for (weights::Checkpoint& checkpoint : checkpoints_of(model)) {
    for (const std::string& key : checkpoint.keys()) {
      const weights::TensorEntry& entry = checkpoint.entry(key);
      if (!at::isFloatingType(entry.dtype) || at::isFloat8Type(entry.dtype)) continue;
      if (checkpoint.stored(key, entry.shape).isfinite().all().item<bool>()) continue;
      return Error(ErrorKind::kInput, checkpoint.folder().string(),
                   fmt::format("the weight {} holds numbers that are not finite; get the file again", key));
    }
  }
  return std::nullopt;
}

}  // namespace

std::string overflow_advice(at::ScalarType dtype) {
  if (dtype != at::kFloat)
    return fmt::format("try {} fp32; if that is no help, the weights may be damaged", field("dtype"));
  return fmt::format("try a smaller {}, or another {}", field("guidance_scale"), field("scheduler"));
}

Error overflow_error(int64_t first, int64_t steps, const Settings& settings, const Model& model) {
  const at::ScalarType dtype = *settings.request.dtype;
  const std::string since = fmt::format("the latents are not finite from step {} of {} on", first + 1, steps);
  if (settings.guided() && settings.guidance > kLargeGuidance)
    return {ErrorKind::kUsage, field("guidance_scale"),
            fmt::format("{}, with {}; try a smaller one", since, settings.guidance)};
  if (auto damage = find_damage(model)) return *damage;
  if (dtype != at::kFloat)
    return {ErrorKind::kUsage, field("dtype"),
            fmt::format("{}, in {}; {}", since, dtype_name(dtype), overflow_advice(dtype))};
  return {ErrorKind::kInput, model.path().string(),
          fmt::format("{}, in fp32, and all weights are; {}", since, overflow_advice(dtype))};
}

Error image_overflow_error(const Settings& settings, const Model& model) {
  if (auto damage = find_damage(model)) return *damage;
  const at::ScalarType dtype = *settings.request.dtype;
  const std::string what =
      fmt::format("all numbers of an image overflowed in the decoder, in {}", dtype_name(dtype));
  if (dtype != at::kFloat)
    return {ErrorKind::kUsage, field("dtype"), fmt::format("{}; {}", what, overflow_advice(dtype))};
  return {ErrorKind::kInput, model.path().string(), what + "; is the decoder of another model?"};
}

}  // namespace tessera::engine
