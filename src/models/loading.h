// How a part of a model is read from its folder.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "models/family.h"
#include "weights/checkpoint.h"
#include "weights/scope.h"

namespace tessera::models {

// A component folder of a checkpoint (`transformer`, `vae`, `text_encoder`) while its layers are built.
class PartFiles {
 public:
  PartFiles(const std::filesystem::path& folder, weights::Library library, const LoadOptions& options);

  weights::Scope scope();
  weights::Checkpoint& checkpoint() { return checkpoint_; }
  // After all layers: adds to `statistics`, and warns of weights that nothing read, but for those under the
  // prefixes. `is_all`: others read none of them.
  void finish(LoadStatistics& statistics, bool is_all = true,
              const std::vector<std::string_view>& ignored = {});

 private:
  weights::Checkpoint checkpoint_;
  weights::Placement placement_;
  bool warns_;  // single files hold more than a config names: layers that are not run, the training's state
};

}  // namespace tessera::models
