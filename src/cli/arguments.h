// Parses the command line. Dashes and underscores are the same in the names of options, so that xDiT's
// spelling works too.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cli/analyze_arguments.h"
#include "cli/plan_arguments.h"
#include "engine/request.h"
#include "job/arguments.h"
#include "plan/sizes.h"

namespace tessera::cli {

struct MeshArguments {
  parallel::ParallelOptions parallel;
  std::optional<int64_t> world;
  bool json = false;
  // With a model, each rank's share of this request is shown; without one, only groups.
  std::optional<std::string> model;
  engine::Request request;
};

// What each rank of a run would do, from shapes alone.
struct TraceArguments {
  // Without prompts: the longest that the model takes. The model may be a denoiser alone.
  job::GenerateArguments run;
  std::optional<std::string> stablehlo;  // a file ending in .mlir
  std::optional<std::string> part;       // of the model, as a program
  std::optional<std::string> sharding;   // "sdy": of one program for all ranks
  std::optional<std::string> mesh;       // "2x4": of these
  std::optional<std::string> stages;     // "0-13,14-27": blocks of a program each
  bool sequence_parallel = false;        // of these
  std::optional<std::string> rank;       // a number, or "all"
  std::optional<std::string> output;
  bool cache = true, graph = false, json = false, quiet = false;
};

struct CompareArguments {
  plan::Sizes sizes;
  bool train = false, json = false, csv = false;
};

// What is measured of this host, for a machine file.
struct CalibrateArguments {
  std::optional<std::string> output;
  // A table of measured runs or recordings of runs, and the machine that is fitted to them instead of
  // measuring this host.
  std::optional<std::string> from_table, machine;
  std::vector<std::string> from_records;
  std::optional<int64_t> threads, nproc;  // of a rank; the most ranks
  std::optional<at::ScalarType> dtype;
  std::optional<double> seconds;
  bool quiet = false;
};

struct ModelsArguments {
  std::optional<std::string> model, config, variant;
  bool json = false;
};

// The text of --help or --version.
struct ShowText {
  std::string text;
};

using Command = std::variant<job::GenerateArguments, ModelsArguments, MeshArguments, TraceArguments,
                             AnalyzeArguments, PlanArguments, CompareArguments, CalibrateArguments, ShowText>;

// `arguments` lacks the program's name. Throws Error(kUsage) with one line that names the option and the
// valid values; for an unknown option or command it names the nearest known one.
Command parse_arguments(const std::vector<std::string>& arguments);

}  // namespace tessera::cli
