#include "plan/obstacles.h"

namespace tessera::plan {
namespace {

std::string undivided(const Sizes& sizes, int64_t count, const std::string& what) {
  if (count % sizes.degree == 0) return "";
  return fmt::format("{} {} do not divide evenly among {} ranks", count, what, sizes.degree);
}

}  // namespace

std::string samples_obstacle(const Sizes& sizes) {
  if (sizes.batch % sizes.degree == 0) return "";
  return fmt::format("a batch of {} does not divide evenly among {} ranks", sizes.batch, sizes.degree);
}

std::string heads_obstacle(const Sizes& sizes) {
  return undivided(sizes, *sizes.key_value_heads,
                   *sizes.key_value_heads == sizes.heads ? "heads" : "heads of keys and values");
}

std::string tokens_obstacle(const Sizes& sizes) {
  return undivided(sizes, sizes.sequence, "tokens");
}

std::string layers_obstacle(const Sizes& sizes) {
  return undivided(sizes, sizes.layers, "layers");
}

std::string pipeline_obstacle(const Sizes& sizes) {
  if (std::string obstacle = layers_obstacle(sizes); !obstacle.empty()) return obstacle;
  if (sizes.batch % *sizes.micro_batches == 0) return "";
  return fmt::format("the batch of {} has no {} micro-batches", sizes.batch, *sizes.micro_batches);
}

std::string frames_obstacle(const Sizes& sizes) {
  if (!sizes.frames) return fmt::format("{} says how tokens divide", field("frames"));
  if (std::string obstacle = undivided(sizes, *sizes.frames, "frames"); !obstacle.empty()) return obstacle;
  if (sizes.layers % 2 != 0) return fmt::format("{} layers are not pairs", sizes.layers);
  return undivided(sizes, sizes.sequence / *sizes.frames, "tokens of a frame");
}

}  // namespace tessera::plan
