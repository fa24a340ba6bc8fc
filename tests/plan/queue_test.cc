// Tests the queue of a server against closed forms and against queues that are simulated.
#include "plan/planner/queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <random>

namespace tessera::plan {
namespace {

// With one worker: Pollaczek and Khinchine's mean, and Erlang's share of requests that wait for no longer
// than x (the sum over j up to x / D of (a_j)^j / j! exp(-a_j), times 1 - load, with a_j = rate (j D - x)).
TEST(Queue, IsThatOfErlangWithOneWorker) {
  for (const double load : {0.05, 0.5, 0.9, 0.99}) {
    const double service = 3, rate = load / service;
    const DeterministicQueue queue(1, service, rate);
    EXPECT_NEAR(queue.load(), load, 1e-12);
    EXPECT_NEAR(queue.mean_seconds(), service * (1 + load / (2 * (1 - load))), 1e-7 / (1 - load)) << load;
    for (const double wait : {0.0, 0.5, 3.0, 7.0}) {
      double sum = 0;
      for (int j = 0; j <= static_cast<int>(wait / service); ++j) {
        const double a = rate * (j * service - wait);
        sum += std::pow(a, j) * std::exp(-a) / std::tgamma(j + 1.0);
      }
      EXPECT_NEAR(queue.share_waiting_at_most(wait), (1 - load) * sum, 1e-9) << load << " " << wait;
    }
  }
}

struct Simulated {
  double mean = 0, p95 = 0;
};

Simulated simulate_queue(size_t workers, double service, double rate) {
  constexpr size_t kRequests = 2'000'000, kBefore = 100'000;
  std::mt19937_64 random(7);
  std::exponential_distribution<double> gap(rate);
  std::priority_queue<double, std::vector<double>, std::greater<>> free;  // when each worker is
  for (size_t i = 0; i < workers; ++i) free.push(0);
  std::vector<double> taken;
  double now = 0, sum = 0;
  for (size_t i = 0; i < kRequests; ++i) {
    now += gap(random);
    const double end = std::max(now, free.top()) + service;
    free.pop();
    free.push(end);
    if (i < kBefore) continue;
    taken.push_back(end - now);
    sum += end - now;
  }
  const auto place = taken.begin() + static_cast<std::ptrdiff_t>(taken.size() * 95 / 100);
  std::nth_element(taken.begin(), place, taken.end());
  return {sum / static_cast<double>(taken.size()), *place};
}

TEST(Queue, IsWhatASimulationGives) {
  for (const auto& [workers, load] :
       {std::pair<size_t, double>{1, 0.8}, {2, 0.6}, {4, 0.9}, {16, 0.8}, {64, 0.85}}) {
    const double service = 2.5, rate = load * static_cast<double>(workers) / service;
    const DeterministicQueue queue(static_cast<int64_t>(workers), service, rate);
    const Simulated simulated = simulate_queue(workers, service, rate);
    EXPECT_NEAR(queue.mean_seconds() / simulated.mean, 1, 0.01) << workers << " " << load;
    EXPECT_NEAR(queue.quantile_seconds(0.95) / simulated.p95, 1, 0.01) << workers << " " << load;
  }
}

// Few requests take their service alone; the more come, the longer they take; many workers are many.
TEST(Queue, GrowsWithItsLoad) {
  EXPECT_NEAR(DeterministicQueue(8, 2, 1e-3).quantile_seconds(0.95), 2, 1e-9);
  double before = 0;
  for (const double load : {0.1, 0.5, 0.8, 0.95, 0.99, 0.999, 0.99999}) {
    const DeterministicQueue queue(8, 2, 4 * load);
    EXPECT_GT(queue.mean_seconds(), before) << load;
    if (load >= 0.8) {
      EXPECT_GT(queue.quantile_seconds(0.95), queue.mean_seconds()) << load;
    }
    before = queue.mean_seconds();
  }
  const DeterministicQueue many(512, 2, 200);
  EXPECT_LT(many.mean_seconds(), 2.01);
  EXPECT_TRUE(std::isfinite(many.quantile_seconds(0.95)));
}

}  // namespace
}  // namespace tessera::plan
