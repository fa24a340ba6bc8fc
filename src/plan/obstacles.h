// What ranks have of what a method divides among them.
#pragma once

#include <string>

#include "plan/sizes.h"

namespace tessera::plan {

// Both are empty where all ranks have as much.
struct Division {
  std::string obstacle{};  // why there is nothing for some ranks
  std::string uneven{};    // "28 layers among 8 ranks, 4 at most"
};

// Returns the first obstacle of both, and all that is uneven.
Division operator+(Division a, const Division& b);

Division samples_division(const Sizes& sizes);
Division heads_division(const Sizes& sizes);  // of keys too: all ranks have some of them
// Heads of keys that are fewer than ranks are repeated, as Megatron-LM does.
Division repeated_heads_division(const Sizes& sizes);
Division tokens_division(const Sizes& sizes);
Division layers_division(const Sizes& sizes);
Division micro_batches_division(const Sizes& sizes);
Division ulysses_groups_division(const Sizes& sizes);  // heads of keys in the groups of USP
Division frames_division(const Sizes& sizes);          // frames, and the tokens of a frame

}  // namespace tessera::plan
