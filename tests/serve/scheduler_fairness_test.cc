#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "serve/scheduler.h"

namespace tessera::serve {
namespace {

// Owners who always have work, and worlds that do nothing else.
struct Crowd {
  int owners = 0;
  int worlds = 1;
  double largest = 100;
  bool has_deadlines = false, has_batches = false;
  SchedulerOptions options{.max_jobs_of_owner = 1'000'000};

  double lead = 0;  // most that one owner has had more than another
  double wait = 0;  // most that a job has waited beyond twice its fair share
  int64_t begun = 0;

  void run(uint64_t seed, int64_t events) {
    std::mt19937_64 random(seed);
    const auto uniform = [&](double from, double to) {
      return std::uniform_real_distribution<double>(from, to)(random);
    };
    Scheduler scheduler(options);
    if (has_batches) {
      for (int64_t n = 1; n <= 8; ++n)
        scheduler.measured("k0", n, Seconds(0.5 + 0.5 * static_cast<double>(n)));
    }
    struct Waiting {
      int owner;
      double cost, since, before;  // `before` is the work of its owner that comes before it
    };
    std::map<std::string, Waiting> waiting;
    std::vector<double> served(owners), queued(owners);
    std::vector<double> free_at(worlds), largest_job(owners);
    std::vector<RunId> runs(worlds);
    std::vector<std::vector<std::string>> running(worlds);
    for (int world = 0; world < worlds; ++world) scheduler.ready(world);
    for (int owner = 0; owner < owners; ++owner) largest_job[owner] = uniform(1, largest);
    int64_t count = 0;
    for (int64_t i = 0; i < events; ++i) {
      const auto next = std::ranges::min_element(free_at);
      const double now = *next;
      const WorldId world = next - free_at.begin();
      if (runs[world] != 0) scheduler.completed(runs[world]);
      for (const std::string& id : running[world]) scheduler.finished(id);
      for (int owner = 0; owner < owners; ++owner) {
        while (queued[owner] < 2 * largest) {
          const std::string id = std::to_string(count++);
          const double cost = uniform(largest_job[owner] / 20, largest_job[owner]);
          Job job{.id = id,
                  .owner = std::to_string(owner),
                  .batch_key = "k" + std::to_string(random() % 4),
                  .estimate = Seconds(cost),
                  .steps = 1};
          // Those without one always wait, so that the owner always has work.
          if (has_deadlines && owner == 0 && random() % 2 == 0) {
            job.deadline = Seconds(now + cost * uniform(1, 10));
          }
          EXPECT_FALSE(scheduler.submit(job, Seconds(now)));
          waiting[id] = {.owner = owner, .cost = cost, .since = now, .before = queued[owner]};
          queued[owner] += cost;
        }
      }
      const Decision decision = scheduler.decide(world, Seconds(now));
      for (const std::string& id : decision.unstarted) {
        queued[waiting.at(id).owner] -= waiting.at(id).cost;
        waiting.erase(id);
      }
      ASSERT_EQ(decision.begun.size(), 1U);
      runs[world] = decision.begun.front().run;
      running[world] = decision.begun.front().jobs;
      const auto size = static_cast<double>(running[world].size());
      const double share = has_batches ? (0.5 + 0.5 * size) / size : 1;
      double seconds = 0;
      for (const std::string& id : running[world]) {
        const Waiting& each = waiting.at(id);
        served[each.owner] += each.cost * share;
        queued[each.owner] -= each.cost;
        seconds += each.cost * share;
        const double fair = owners * (each.before + each.cost) / worlds;
        // Jobs with deadlines go before others of their own owner too, which is that owner's choice.
        if (!has_deadlines || each.owner != 0) wait = std::max(wait, now - each.since - 2 * fair);
        waiting.erase(id);
        ++begun;
      }
      free_at[world] = now + seconds;
      const auto [least, most] = std::ranges::minmax(served);
      lead = std::max(lead, most - least);
    }
  }
};

TEST(SchedulerFairness, OwnersWithWorkGetEqualShares) {
  for (const int worlds : {1, 3}) {
    for (const int owners : {2, 5, 40}) {
      Crowd crowd{.owners = owners, .worlds = worlds};
      crowd.run(static_cast<uint64_t>(owners), 4'000);
      EXPECT_LE(crowd.lead, crowd.largest) << owners << " owners, " << worlds << " worlds";
      EXPECT_LE(crowd.wait, crowd.largest) << owners << " owners, " << worlds << " worlds";
    }
  }
}

TEST(SchedulerFairness, BatchesAndDeadlinesTakeNobodyFarAhead) {
  for (const int worlds : {1, 3}) {
    for (const int owners : {2, 5, 40}) {
      Crowd crowd{.owners = owners, .worlds = worlds, .has_deadlines = true, .has_batches = true};
      crowd.run(static_cast<uint64_t>(owners), 4'000);
      EXPECT_LE(crowd.lead, crowd.largest + crowd.options.quantum.count()) << owners << " owners, " << worlds;
      EXPECT_LE(crowd.wait, crowd.largest) << owners << " owners, " << worlds << " worlds";
    }
  }
}

}  // namespace
}  // namespace tessera::serve
