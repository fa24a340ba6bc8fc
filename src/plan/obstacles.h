// Why ranks cannot divide something evenly; each is empty where they can.
#pragma once

#include <string>

#include "plan/sizes.h"

namespace tessera::plan {

std::string samples_obstacle(const Sizes& sizes);
std::string heads_obstacle(const Sizes& sizes);  // those of the keys
std::string tokens_obstacle(const Sizes& sizes);
std::string layers_obstacle(const Sizes& sizes);
std::string pipeline_obstacle(const Sizes& sizes);  // layers and micro-batches
std::string frames_obstacle(const Sizes& sizes);    // frames, and the tokens of a frame

}  // namespace tessera::plan
