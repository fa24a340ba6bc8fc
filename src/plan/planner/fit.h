// Fits the numbers of a machine that data sheets lack to runs that were measured on it: at most six, each
// with a meaning of its own, so that the machine can then predict runs that it was not fitted to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "plan/schedule.h"

namespace tessera::plan {

// A measured run, and what its ranks do.
struct MeasuredRun {
  std::string name;    // for people
  double seconds = 0;  // measured
  int64_t devices = 1;
  // The pieces of a run, one after the other, and how often each happens.
  struct Piece {
    Schedule schedule;
    int64_t steps = 1;
    double times = 1;
  };
  std::vector<Piece> pieces;
};

// The value of a number on the fitted machine: the geometric mean of a share that depends on sizes, and that
// of the first of several links.
struct FittedNumber {
  std::string name;
  double value = 0;
  std::string unit;              // "us", "GB/s"; empty for a dimensionless number
  std::optional<double> factor;  // relative to the start of the fit; empty if the start is arbitrary
  bool is_told = true;           // whether any run depends on it; otherwise it keeps its value
};

struct Fit {
  Machine machine;  // with the fitted numbers
  std::vector<FittedNumber> numbers;
  std::vector<double> seconds;  // of each run, on that machine
};

// `machine` is the one that the schedules were made for, and the start of the fit; `links` are as in
// Costs::links, and belong to the result. The fitted numbers are the shares of its rates that products and
// attention reach, the host's time to launch operations and collectives (unless measured shares of the
// machine include it), and, with runs on several devices, the bandwidth of the links including their measured
// rows, the contention of all-to-all, and the share of messages that computing can hide. Minimises the
// squared logarithms of predicted over measured; a number that no run depends on keeps its value. Throws
// Error(kInput) as simulate() does.
Fit fit_machine(const Machine& machine, const std::vector<Link>& links, const std::vector<MeasuredRun>& runs);

}  // namespace tessera::plan
