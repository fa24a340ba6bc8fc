// The index of a checkpoint in several files: `*.safetensors.index.json`.
#pragma once

#include <map>
#include <string>

#include "core/json.h"

namespace tessera::weights {

// Maps each key to the name of the file that contains it, in the folder of the index. Throws Error(kInput) if
// `weight_map` is missing or names anything but a file in that folder.
std::map<std::string, std::string> parse_shard_index(const JsonConfig& index);

}  // namespace tessera::weights
