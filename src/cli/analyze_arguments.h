// The arguments of `tessera analyze`.
#pragma once

#include <optional>
#include <string>

#include "cli/field_options.h"

namespace tessera::cli {

// `tessera analyze hardware`.
struct AnalyzeArguments {
  std::string machine;  // a file, or the name of a machine that ships
  std::optional<std::string> dtype, link;
  std::optional<double> link_gb_per_s;
  int64_t dies = 1;
  int64_t num_frames = 0, height = 0, width = 0, batch = 2, num_inference_steps = 30;
  bool as_published = false, preset_splits = false, json = false;
};

// The options of the command, and their values after CLI11 is done. The app must not outlive this object.
class AnalyzeOptions {
 public:
  explicit AnalyzeOptions(CLI::App& app);
  // Throws Error(kUsage).
  AnalyzeArguments read(const Values& values) const;

 private:
  std::optional<size_t> view_;  // place in the values
  FieldOptions options_;
};

}  // namespace tessera::cli
