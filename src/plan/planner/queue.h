// How long requests take at a server that has several equal workers: the queue M/D/c. Requests arrive at
// random (Poisson), each takes the same time on one worker, and the first to come is the first to be served.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::plan {

class DeterministicQueue {
 public:
  // `service` seconds on each of `workers`, at `rate` requests a second; load() must be below 1, and is taken
  // to be kMostLoad if it is nearer to it than that.
  DeterministicQueue(int64_t workers, double service, double rate);

  static constexpr double kMostLoad = 0.9999;

  double load() const { return rate_ * service_ / static_cast<double>(workers_); }
  // Of a request from its arrival to its end.
  double mean_seconds() const { return service_ + mean_wait_; }
  // The time that a share of all requests do not exceed, for a share below 1.
  double quantile_seconds(double share) const;
  // The share of requests that wait for no longer than `seconds` until a worker begins them.
  double share_waiting_at_most(double seconds) const;

 private:
  int64_t workers_;
  double service_, rate_;
  double mean_wait_ = 0;
  std::vector<double> queue_;  // the share of the time in which at most so many requests wait
};

}  // namespace tessera::plan
