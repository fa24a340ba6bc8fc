// Reads a component of a model from its folder.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "models/family.h"
#include "weights/checkpoint.h"
#include "weights/scope.h"
#include "weights/source.h"

namespace tessera::models {

// The folder of a part of a model. A folder with config.json but without model_index.json is a denoiser
// alone, and thus itself the part.
std::filesystem::path part_folder(const std::filesystem::path& model, const std::string& part);

// Holds a component folder of a checkpoint (`transformer`, `vae`, `text_encoder`) open while its layers are
// built. The folder may contain only a config (LoadOptions::may_lack_weights).
class PartFiles {
 public:
  PartFiles(const std::filesystem::path& folder, weights::Library library, const LoadOptions& options);

  // config.json; a part that is quantised is refused.
  const JsonConfig& config() const { return config_; }
  weights::Scope scope();
  // The shape of a weight whose size is not in the config; nothing if there are no weights.
  std::optional<std::vector<int64_t>> stored_shape(const std::string& key) const;
  // Warns if the files have other numbers under `key` than the computed ones, which count.
  void compare(const std::string& key, const at::Tensor& computed);
  // Must come after all layers are built. Adds to `statistics`, and warns about keys of the configuration
  // that were not read, except those that have no effect on a result, and about weights that no layer has
  // read, except those under the prefixes `ignored`. `is_all` is false if the layers are only a part of the
  // component, so that unread weights are expected.
  void finish(LoadStatistics& statistics, bool is_all = true,
              const std::vector<std::string_view>& ignored = {});

 private:
  JsonConfig config_;
  std::optional<weights::Checkpoint> checkpoint_;
  weights::ShapeOnlySource shapes_;  // instead of it
  weights::Placement placement_;
  bool warns_;  // about weights that were not read
};

// The same for `files` of a component of which some layers are read at each use: checks and counts these too.
// `build` builds all layers, from the meta device.
void finish_with_layers_at_use(PartFiles& files, const std::filesystem::path& folder,
                               weights::Library library, const LoadOptions& options,
                               const std::function<void(const weights::Scope&, const JsonConfig&)>& build,
                               const std::vector<std::string_view>& ignored, LoadStatistics& statistics);

}  // namespace tessera::models
