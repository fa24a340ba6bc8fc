// The arguments of `tessera analyze`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/completion.h"
#include "cli/field_options.h"

namespace tessera::cli {

struct AnalyzeArguments {
  std::string what;  // "hardware", a view of a trace (plan/trace_views.h), or "report"
  std::vector<std::string>
      traces;                   // files: one for a view, any number for hardware, one or more for a report
  std::optional<int64_t> rank;  // of a view, or of hardware
  std::optional<std::string> output;  // of a report
  std::string machine;  // a file, or the name of a machine that ships; may be empty for a report
  std::optional<std::string> dtype, link;
  std::optional<double> link_gb_per_s;
  int64_t dies = 1;
  int64_t top = 15;  // rows of a table of operators for people; 0 for all
  int64_t num_frames = 0, height = 0, width = 0, batch = 2;
  std::optional<int64_t> num_inference_steps;
  bool json = false, csv = false;
};

// The options of the command, and their values after CLI11 is done. The app must not outlive this object.
class AnalyzeOptions {
 public:
  explicit AnalyzeOptions(CLI::App& app);
  // Throws Error(kUsage).
  AnalyzeArguments read(const Values& values) const;
  CommandCompletion completion() const;

 private:
  std::vector<size_t> operands_;  // places in the values
  FieldOptions options_;
};

}  // namespace tessera::cli
