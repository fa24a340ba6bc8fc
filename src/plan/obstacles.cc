#include "plan/obstacles.h"

#include "core/text.h"

namespace tessera::plan {
namespace {

constexpr const char *kHeads = "head", *kKeyHeads = "key-value head";

// `parts` are ranks, or micro-batches.
Division divide(int64_t count, const std::string& what, int64_t parts, const std::string& part = "rank") {
  if (count % parts == 0) return {};
  const std::string all = counted(count, what);
  if (count < parts)
    return {.obstacle =
                fmt::format("{} {} too few for {}", all, count == 1 ? "is" : "are", counted(parts, part))};
  return {.uneven =
              fmt::format("{} among {}, {} at most", all, counted(parts, part), (count - 1) / parts + 1)};
}

Division divide_heads(const Sizes& sizes, int64_t parts) {
  const bool grouped = *sizes.key_value_heads != sizes.heads;
  return divide(*sizes.key_value_heads, grouped ? kKeyHeads : kHeads, parts);
}

}  // namespace

Division operator+(Division a, const Division& b) {
  if (a.obstacle.empty()) a.obstacle = b.obstacle;
  if (!a.uneven.empty() && !b.uneven.empty()) a.uneven += "; ";
  a.uneven += b.uneven;
  return a;
}

Division samples_division(const Sizes& sizes) {
  return divide(sizes.batch, "sample", sizes.degree);
}

Division heads_division(const Sizes& sizes) {
  Division queries;
  if (*sizes.key_value_heads != sizes.heads) queries = divide(sizes.heads, kHeads, sizes.degree);
  return std::move(queries) + divide_heads(sizes, sizes.degree);
}

Division repeated_heads_division(const Sizes& sizes) {
  const int64_t keys = *sizes.key_value_heads;
  if (keys >= sizes.degree) return heads_division(sizes);
  Division queries = divide(sizes.heads, kHeads, sizes.degree);
  if (!queries.obstacle.empty()) return queries;
  return std::move(queries) + Division{.uneven = fmt::format("{} repeated on {}", counted(keys, kKeyHeads),
                                                             counted(sizes.degree, "rank"))};
}

Division tokens_division(const Sizes& sizes) {
  return divide(sizes.sequence, "token", sizes.degree);
}

Division layers_division(const Sizes& sizes) {
  return divide(sizes.layers, "layer", sizes.degree);
}

Division micro_batches_division(const Sizes& sizes) {
  return divide(sizes.batch, "sample", *sizes.micro_batches, "micro-batch");
}

Division ulysses_groups_division(const Sizes& sizes) {
  return divide_heads(sizes, *sizes.ulysses_degree);
}

Division frames_division(const Sizes& sizes) {
  if (!sizes.frames) return {.obstacle = fmt::format("{} says how tokens divide", field("frames"))};
  if (sizes.layers % 2 != 0)
    return {.obstacle = fmt::format("{} cannot be paired", counted(sizes.layers, "layer"))};
  return divide(*sizes.frames, "frame", sizes.degree) +
         divide(sizes.sequence / *sizes.frames, "place", sizes.degree);
}

}  // namespace tessera::plan
