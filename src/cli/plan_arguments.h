// The arguments of `tessera plan`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/field_options.h"
#include "job/arguments.h"
#include "plan/machine.h"

namespace tessera::cli {

struct PlanArguments {
  // Degrees ask for the prediction of their layout, instead of a search.
  job::GenerateArguments run;
  std::optional<int64_t> devices;
  std::string machine;  // a file, or the name of a machine that ships
  std::optional<std::string> link;
  std::optional<double> link_gb_per_s;
  std::optional<double> memory_limit;  // GiB of a device
  std::string max_staleness = "any";   // "none", "any", or a number of steps
  std::optional<int64_t> images;
  std::optional<double> requests_per_minute;  // at a server
  bool json = false;
};

const Fields<PlanArguments>& plan_fields();
extern const char* const kPlanFooter;
void add_plan_options(FieldOptions& options);
PlanArguments plan_arguments(const FieldOptions& options, const Values& values);

// Whether layouts may work with activations of earlier steps, as a text says it: "none", "any", or a number
// of steps. Throws Error(kUsage).
bool allows_stale(const std::string& text);

// Chooses what the arguments leave open and the machine tells: the device, and the dtype.
void take_from_machine(PlanArguments& arguments, const plan::Machine& machine);

// Prints the soonest layouts, what the given one takes, or how a server deals its devices. Throws Error.
void run_plan(const PlanArguments& arguments);

}  // namespace tessera::cli
