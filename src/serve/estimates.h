// How long jobs take, by what was measured of those before.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "serve/job.h"

namespace tessera::serve {

// Times of runs with one batch key: averages in which the last four count for most. What has not been
// measured yet is scaled from what has, by the work.
class Estimates {
 public:
  // `work` of a step, in a unit that is the same for all: pixels x frames x branches of guidance x pictures.
  void add_step(const std::string& batch_key, double work, Seconds step);
  // What a run takes besides its steps, for the work of one of its steps.
  void add_rest(const std::string& batch_key, double work, Seconds rest);

  Seconds step(const std::string& batch_key, double work) const;
  // Of the whole run; positive.
  Seconds run(const std::string& batch_key, double work, int64_t steps) const;

 private:
  struct Mean {
    double seconds_per_work = 0;
    int64_t count = 0;
    void add(double value);
  };
  struct Measured {
    Mean step, rest;
  };
  std::unordered_map<std::string, Measured> by_key_;
  Measured all_;
};

}  // namespace tessera::serve
