// How a tokenizer.json describes its normalizer, pre-tokenizer and post-processor: an object with a type,
// which may be a sequence of others.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace tessera::text {

// The parts of `description` in the order in which they work: none when it is null, those under `key` when it
// is a Sequence, which may have others within, and else itself. Throws Error(kInput) with `where` for another
// shape.
std::vector<JsonConfig> parse_parts(const Json& description, const std::string& key,
                                    const std::string& where);

// The `pattern` of a part: {"String": "..."} or {"Regex": "..."}. Throws Error(kInput) as Regex does.
Regex parse_pattern(const JsonConfig& part);

// Throws Error(kInput) that names the type.
[[noreturn]] void unsupported_part(const JsonConfig& part);

}  // namespace tessera::text
