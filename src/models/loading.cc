#include "models/loading.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "weights/single_file.h"

namespace tessera::models {

namespace {

weights::Checkpoint open(const std::filesystem::path& folder, weights::Library library,
                         const LoadOptions& options) {
  if (!options.single_file) return {folder, library, options.variant};
  const std::string part = folder.filename().string();
  auto tensors = weights::single_file_part(options.single_file->header(), part);
  if (tensors.empty()) {
    input_error(options.single_file->path().string(),
                "has no {} under the names of Stable Diffusion's own code", part);
  }
  return {options.single_file, std::move(tensors)};
}

}  // namespace

PartFiles::PartFiles(const std::filesystem::path& folder, weights::Library library,
                     const LoadOptions& options)
    : checkpoint_(open(folder, library, options)),
      placement_(options.placement),
      warns_(!options.single_file) {}

weights::Scope PartFiles::scope() {
  return {checkpoint_, placement_};
}

void PartFiles::finish(LoadStatistics& statistics, bool is_all,
                       const std::vector<std::string_view>& ignored) {
  statistics.bytes_read += checkpoint_.bytes_used();
  statistics.bytes_held += checkpoint_.bytes_held();
  if (!is_all || !warns_) return;
  for (const std::string& key : checkpoint_.unused()) {
    const auto covers = [&](std::string_view prefix) { return key.starts_with(prefix); };
    if (std::any_of(ignored.begin(), ignored.end(), covers)) continue;
    log_warning("[{}] weight '{}' is not used", checkpoint_.folder().string(), key);
  }
}

}  // namespace tessera::models
