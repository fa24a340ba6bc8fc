// The commands: each runs with its arguments and prints what it finds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/field_options.h"
#include "comm/world.h"
#include "plan/machine.h"

namespace tessera::cli {

// Generates pictures, writes the files and prints their paths on stdout; starts the ranks if there are
// several. Returns the exit code; the message of a failed rank has already been printed. Throws Error and
// engine::Cancelled.
int run_generate(const job::GenerateArguments& arguments);

// Runs as one of several ranks that a launcher has started. `arguments` returns those of this rank's command
// line, or throws the error in it. The command line of rank 0 counts, whatever the others are; each rank
// reads only --timeout, --interface and --no-shared-memory from its own. Ends the process.
[[noreturn]] void run_generate_as_rank(const std::function<job::GenerateArguments()>& arguments,
                                       const comm::Rendezvous& place);

// Prints what is in a checkpoint and whether it can run; without a model, prints the models that ship.
// Returns 0 if it can run, otherwise 3. Throws Error(kInput) if the folder is not a checkpoint at all.
int run_models(const ModelsArguments& arguments);
const Fields<ModelsArguments>& models_fields();  // the first is an operand

// Prints the groups of each axis and the coordinates of each rank. Throws Error(kUsage) when the product of
// the degrees is not --world.
void run_mesh(const MeshArguments& arguments);

const Fields<TraceArguments>& trace_fields();

// Throws Error.
void run_trace(const TraceArguments& arguments);

extern const char* const kAnalyzeFooter;
std::vector<std::string> analyze_subjects();
void add_analyze_options(FieldOptions& options);
AnalyzeArguments analyze_arguments(const FieldOptions& options);

// Prints the analysis. Throws Error(kInput) for a machine file that is wrong or lacks a requested figure.
void run_analyze(const AnalyzeArguments& arguments);

extern const char* const kPlanFooter;
void add_plan_options(FieldOptions& options);
PlanArguments plan_arguments(const FieldOptions& options);

// Takes from the machine what the arguments leave open: the device and the dtype.
void take_from_machine(PlanArguments& arguments, const plan::Machine& machine);

// Prints the fastest layouts, the time of the given layout, or how to divide a server's devices. Throws
// Error.
void run_plan(const PlanArguments& arguments);

const Fields<CompareArguments>& compare_fields();  // besides the sizes

// Prints what each parallel method makes a rank send, hold and compute (plan/comparison.h). Throws
// Error(kUsage) for sizes whose results are too large.
void run_compare(const CompareArguments& arguments);

extern const char* const kCalibrateFooter;
const Fields<CalibrateArguments>& calibrate_fields();

// Measures this host or fits a machine to runs, writes a machine file (docs/planning.md) and prints its path.
// Returns the exit code; the message of a failed rank has already been printed. Throws Error.
int run_calibrate(const CalibrateArguments& arguments);

extern const char* const kServeFooter;
void add_serve_options(FieldOptions& options);
serve::ServeOptions serve_options(const FieldOptions& options);

// Runs a server until it is asked to end, and prints where it listens. Returns the exit code; the message has
// already been printed. Throws Error.
int run_serve(const serve::ServeOptions& options);

}  // namespace tessera::cli
