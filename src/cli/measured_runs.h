// `tessera calibrate --from-table` and `--from-records`: make a machine file from runs that were measured on
// the machine.
#pragma once

#include <string>
#include <vector>

#include "core/table.h"
#include "plan/planner/fit.h"

namespace tessera::cli {

struct RunsFit {
  plan::Fit fit;
  std::vector<plan::MeasuredRun> runs;
};

// Fits the machine that is named or in the file `machine` to the rows of a CSV with the columns model (a
// folder, or the config.json of a denoiser), height, width, frames, steps, batch, devices, flags (as the
// command line spells them) and seconds (of a whole request). Empty cells take the defaults of `tessera
// plan`. Throws Error that names the file and the line.
RunsFit fit_table(const std::string& path, const std::string& machine);

// Fits in the same way to the denoising and decoding of recorded runs, all in one dtype, with as many threads
// per rank as the machine was measured with. Throws Error that names the file.
RunsFit fit_records(const std::vector<std::string>& paths, const std::string& machine);

// Returns the machine file: the machine's own keys, those that were fitted, and what they were fitted to.
OrderedJson fitted_machine(const RunsFit& fitted);
// Returns the numbers with their units, one per line.
std::string numbers_text(const RunsFit& fitted);
// Returns a warning of one line if the fit is far from some run, for example one that was disturbed;
// otherwise an empty text.
std::string misses_text(const RunsFit& fitted);
// Shows how closely each run is fitted.
Table runs_table(const RunsFit& fitted);

}  // namespace tessera::cli
