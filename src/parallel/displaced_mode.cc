#include "parallel/displaced_mode.h"

namespace tessera::parallel {

std::vector<std::pair<std::string, DisplacedMode>> displaced_modes() {
  return {{"full_sync", DisplacedMode::kFullSync},
          {"sync_gn", DisplacedMode::kSyncGn},
          {"corrected_async_gn", DisplacedMode::kCorrectedAsyncGn},
          {"stale_gn", DisplacedMode::kStaleGn},
          {"separate_gn", DisplacedMode::kSeparateGn},
          {"no_sync", DisplacedMode::kNoSync}};
}

std::string mode_name(DisplacedMode mode) {
  for (const auto& [name, known] : displaced_modes()) {
    if (known == mode) return name;
  }
  return {};
}

}  // namespace tessera::parallel
