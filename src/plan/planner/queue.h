// How long requests take at a server that has several equal workers: the queue M/D/c. Requests arrive at
// random (Poisson), each takes the same time on one worker, and they are served in the order of arrival.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::plan {

class DeterministicQueue {
 public:
  // `service` is the time on each of `workers`, in seconds, and `rate` the number of requests per second;
  // load() must be below 1, and is limited to kMostLoad.
  DeterministicQueue(int64_t workers, double service, double rate);

  static constexpr double kMostLoad = 0.9999;

  double load() const { return rate_ * service_ / static_cast<double>(workers_); }
  // The mean time from a request's arrival to its end.
  double mean_seconds() const { return service_ + mean_wait_; }
  // The time that this share of all requests, below 1, does not exceed.
  double quantile_seconds(double share) const;
  // The share of requests that a worker begins after at most `seconds`.
  double share_waiting_at_most(double seconds) const;

 private:
  int64_t workers_;
  double service_, rate_;
  double mean_wait_ = 0;
  std::vector<double> queue_;  // the share of the time in which at most this many requests wait
};

}  // namespace tessera::plan
