// `tessera calibrate --from-table` and `--from-records`: a machine file from runs that were measured on the
// machine.
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
// command line spells them) and seconds (of a whole request). Empty cells take what `tessera plan` takes.
// Throws Error that names the file and the line.
RunsFit fit_table(const std::string& path, const std::string& machine);

// The same to the denoising and the decoding of runs that were recorded, with as many threads a rank as the
// machine was measured with, all in one dtype. Throws Error that names the file.
RunsFit fit_records(const std::vector<std::string>& paths, const std::string& machine);

// The machine file: the machine's own keys, with those that were fitted, and what they were fitted to.
OrderedJson fitted_machine(const RunsFit& fitted);
// The numbers with their units, a line each.
std::string numbers_text(const RunsFit& fitted);
// A line of warning where the fit is far from some run, as from one that was disturbed; otherwise empty.
std::string misses_text(const RunsFit& fitted);
// How well each run is met.
Table runs_table(const RunsFit& fitted);

}  // namespace tessera::cli
