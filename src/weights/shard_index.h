// The index of a checkpoint in several files: `*.safetensors.index.json`.
#pragma once

#include <map>
#include <string>

#include "core/json.h"

namespace tessera::weights {

// Key -> name of the file that holds it, in the folder of the index. Throws Error(kInput) when `weight_map`
// is missing, or names what is not a file of that folder.
std::map<std::string, std::string> parse_shard_index(const JsonConfig& index);

}  // namespace tessera::weights
