// Estimates how long jobs take from measurements of earlier ones.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "serve/job.h"

namespace tessera::serve {

// Times of runs with one batch key: averages in which the last four count for most. Times that have not been
// measured yet are scaled from others, by the work.
class Estimates {
 public:
  // `work` is that of a step, in a unit common to all: pixels x frames x branches of guidance x pictures.
  void add_step(const std::string& batch_key, double work, Seconds step);
  // Adds what a run takes besides its steps, given the work of one of its steps.
  void add_rest(const std::string& batch_key, double work, Seconds rest);

  Seconds step(const std::string& batch_key, double work) const;
  // Returns the time of a whole run, which is positive.
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
