// `tessera calibrate --from-table`: a machine file from a table of runs that were measured on the machine.
#pragma once

#include <string>
#include <vector>

#include "core/table.h"
#include "plan/planner/fit.h"

namespace tessera::cli {

// Fits the machine that is named or in the file `machine` to the rows of a CSV with the columns model (a
// folder, or the config.json of a denoiser), height, width, frames, steps, batch, devices, flags (as the
// command line spells them) and seconds (of a whole request). Empty cells take what `tessera plan` takes.
// Throws Error that names the file and the line.
struct TableFit {
  plan::Fit fit;
  std::vector<plan::MeasuredRun> runs;
};
TableFit fit_table(const std::string& path, const std::string& machine);

// The machine file: the machine's own keys, with those that were fitted, and what they were fitted to.
OrderedJson fitted_machine(const TableFit& fitted);
// How well each row is met.
Table rows_table(const TableFit& fitted);

}  // namespace tessera::cli
