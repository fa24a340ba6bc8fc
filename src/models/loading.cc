#include "models/loading.h"

#include <algorithm>

#include "core/log.h"

namespace tessera::models {

PartFiles::PartFiles(const std::filesystem::path& folder, const LoadOptions& options)
    : checkpoint_(folder), placement_(options.placement) {}

weights::Scope PartFiles::scope() {
  return {checkpoint_, placement_};
}

void PartFiles::finish(LoadStatistics& statistics, bool is_all,
                       const std::vector<std::string_view>& ignored) {
  statistics.bytes_read += checkpoint_.bytes_used();
  statistics.bytes_held += checkpoint_.bytes_held();
  if (!is_all) return;
  for (const std::string& key : checkpoint_.unused()) {
    const auto covers = [&](std::string_view prefix) { return key.starts_with(prefix); };
    if (std::any_of(ignored.begin(), ignored.end(), covers)) continue;
    log_warning("[{}] weight '{}' is not used", checkpoint_.folder().string(), key);
  }
}

}  // namespace tessera::models
