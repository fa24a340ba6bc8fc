// How a tokenizer.json describes its normalizer, pre-tokenizer and post-processor: as an object with a type,
// which may be a sequence of such objects.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace tessera::text {

// Returns the parts of `description` in the order in which they apply: none if it is null, those under `key`
// (recursively) if it is a Sequence, else itself. Throws Error(kInput) with `where` for another shape.
std::vector<JsonConfig> parse_parts(const Json& description, const std::string& key,
                                    const std::string& where);

// Parses the `pattern` of a part: {"String": "..."} or {"Regex": "..."}. Throws Error(kInput) as Regex does.
Regex parse_pattern(const JsonConfig& part);

// Throws Error(kInput) that names the type.
[[noreturn]] void unsupported_part(const JsonConfig& part);

}  // namespace tessera::text
