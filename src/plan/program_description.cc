// This is separate from what writes programs, because the reader of traces asks too.
#include "plan/stablehlo.h"

namespace tessera::plan {

bool is_program_description(const Json& json) {
  if (!json.is_object()) return false;
  const auto has = [&](const char* key) { return json.contains(key); };
  return has("part") && has("partitions") && has("arguments") && has("results");
}

}  // namespace tessera::plan
