// Fits the numbers of a machine that no data sheet tells to runs that were measured on it: at most six, each
// with a meaning of its own, so that the machine then tells runs that it was not fitted to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "plan/schedule.h"

namespace tessera::plan {

// A run that was measured, and what its ranks do.
struct MeasuredRun {
  std::string name;    // for people
  double seconds = 0;  // measured
  int64_t devices = 1;
  // What one run consists of, one after the other, and how often each happens.
  struct Piece {
    Schedule schedule;
    int64_t steps = 1;
    double times = 1;
  };
  std::vector<Piece> pieces;
};

// What a number is on the fitted machine: of a share its geometric mean where it depends on sizes, of links
// that of the first.
struct FittedNumber {
  std::string name;
  double value = 0;
  std::string unit;              // "us", "GB/s"; empty for a share or a number of its own
  std::optional<double> factor;  // in relation to where the fit began; not of what begins anywhere
  bool is_told = true;           // some run depends on it; otherwise it keeps its value
};

struct Fit {
  Machine machine;  // with the fitted numbers
  std::vector<FittedNumber> numbers;
  std::vector<double> seconds;  // of each run, on that machine
};

// `machine` is what the schedules were made on, from which the fit begins; `links` as Costs::links, and those
// of the result. The numbers are the shares of its rates that products and attention reach, how long the host
// takes to launch (operations and collectives alike; not where measured shares of the machine hold that
// already), and with runs on several devices the bandwidth of the links, measured rows of theirs included,
// the contention of all-to-all, and the share of messages that hides behind computing. Minimises the squared
// logarithms of predicted over measured; a number that no run depends on keeps its value. Throws
// Error(kInput) as simulate() does.
Fit fit_machine(const Machine& machine, const std::vector<Link>& links, const std::vector<MeasuredRun>& runs);

}  // namespace tessera::plan
