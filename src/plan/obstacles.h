// The parts of ranks when a method divides something among them.
#pragma once

#include <string>

#include "plan/sizes.h"

namespace tessera::plan {

// Both are empty if all ranks have equal parts.
struct Division {
  std::string obstacle{};  // why some ranks would get nothing
  std::string uneven{};    // "28 layers among 8 ranks, 4 at most"
};

// Returns the first obstacle of both, and everything that is uneven.
Division operator+(Division a, const Division& b);

Division samples_division(const Sizes& sizes);
Division heads_division(const Sizes& sizes);  // including heads of keys: every rank has some of them
// If there are fewer heads of keys than ranks, they are repeated, as in Megatron-LM.
Division repeated_heads_division(const Sizes& sizes);
Division tokens_division(const Sizes& sizes);
Division layers_division(const Sizes& sizes);
Division micro_batches_division(const Sizes& sizes);
Division ulysses_groups_division(const Sizes& sizes);  // heads of keys, in the groups of USP
Division frames_division(const Sizes& sizes);          // frames, and the tokens of a frame

}  // namespace tessera::plan
