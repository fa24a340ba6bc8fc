// The arguments of the commands, and the command line that sets them.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "job/arguments.h"
#include "plan/sizes.h"
#include "serve/options.h"

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
  // Without prompts, the longest prompt that the model accepts is traced. The model may be a denoiser alone.
  job::GenerateArguments run;
  std::optional<std::string> stablehlo;  // a file ending in .mlir
  std::optional<std::string> part;       // the part of the model that becomes a program
  std::optional<std::string> sharding;   // "sdy": one program for all ranks, with shardings
  std::optional<std::string> mesh;       // "2x4": of these
  std::optional<std::string> stages;     // "0-13,14-27": the blocks of each program
  bool sequence_parallel = false;        // of these
  std::optional<std::string> rank;       // a number, or "all"
  std::optional<std::string> output;
  bool cache = true, graph = false, json = false, quiet = false;
};

struct AnalyzeArguments {
  std::string what;  // "hardware", a view of a trace (plan/trace_views.h), or "report"
  // Files: one for a view, any number for hardware, one or more for a report.
  std::vector<std::string> traces;
  std::optional<int64_t> rank;        // the rank of a view, or of hardware
  std::optional<std::string> output;  // of a report
  std::string machine;  // a file, or the name of a machine that ships; may be empty for a report
  std::optional<std::string> dtype, link;
  std::optional<double> link_gb_per_s;
  int64_t dies = 1;
  int64_t top = 15;  // rows of a table of operators in the text output; 0 for all
  int64_t num_frames = 0, height = 0, width = 0, batch = 2;
  std::optional<int64_t> num_inference_steps;
  bool json = false, csv = false;
};

struct PlanArguments {
  // If degrees are given, their layout is predicted instead of a search.
  job::GenerateArguments run;
  std::optional<int64_t> devices;
  std::string machine;  // a file, or the name of a machine that ships
  std::optional<std::string> link;
  std::optional<double> link_gb_per_s;
  std::optional<double> memory_limit;  // GiB per device
  std::string max_staleness = "any";   // "none", "any", or a number of steps
  std::optional<int64_t> images;
  std::optional<double> requests_per_minute;  // at a server
  bool json = false;
};

struct CompareArguments {
  plan::Sizes sizes;
  bool train = false, json = false, csv = false;
};

// What to measure on this host, for a machine file.
struct CalibrateArguments {
  std::optional<std::string> output;
  // A table of measured runs, or recordings of runs, and the machine that is fitted to them; this host is not
  // measured then.
  std::optional<std::string> from_table, machine;
  std::vector<std::string> from_records;
  std::optional<int64_t> threads, nproc;  // threads of a rank; the largest number of ranks
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

using Command =
    std::variant<job::GenerateArguments, ModelsArguments, MeshArguments, TraceArguments, AnalyzeArguments,
                 PlanArguments, CompareArguments, CalibrateArguments, serve::ServeOptions, ShowText>;

// `arguments` lacks the program's name. Dashes and underscores are interchangeable in the names of options,
// so xDiT's spelling works too. Throws Error(kUsage) with one line that names the option and the valid
// values; for an unknown option or command it names the nearest known one.
Command parse_arguments(const std::vector<std::string>& arguments);

}  // namespace tessera::cli
