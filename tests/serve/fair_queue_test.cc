#include "serve/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "serve/cost_curve.h"
#include "serve/sum_tree.h"

namespace tessera::serve {
namespace {

TEST(SumTree, SumsWhatComesBeforeAKey) {
  std::mt19937 random(1);
  SumTree<int, int64_t> tree;
  std::map<int, int64_t> expected;
  for (int i = 0; i < 20'000; ++i) {
    const int key = static_cast<int>(random() % 500);
    if (expected.contains(key)) {
      expected.erase(key);
      tree.erase(key);
    } else {
      expected[key] = i;
      tree.insert(key, i);
    }
    tree.erase(1000);  // is not there
    int64_t before = 0, all = 0;
    for (const auto& [each, value] : expected) {
      if (each < key) before += value;
      all += value;
    }
    ASSERT_EQ(tree.before(key), before);
    ASSERT_EQ(tree.total(), all);
    ASSERT_EQ(tree.empty(), expected.empty());
    if (expected.empty()) continue;
    ASSERT_EQ(tree.first(), expected.begin()->first);
    ASSERT_EQ(tree.last(), expected.rbegin()->first);
  }
}

TEST(CostCurve, ChoosesOneWhereBatchesTakeAsLongAsTheirPictures) {
  CostCurve curve;
  EXPECT_EQ(curve.best(100, 16), 1);  // nothing is measured
  curve.add(1, Seconds(2.62));
  EXPECT_EQ(curve.best(100, 16), 1);
  curve.add(4, Seconds(10.5));  // of PixArt-Sigma-XL on a CPU
  EXPECT_EQ(curve.best(100, 16), 1);
  EXPECT_NEAR(curve.ratio(4), 4, 0.01);
}

TEST(CostCurve, ChoosesTheSizeOfLeastMean) {
  CostCurve curve;
  curve.add(1, Seconds(1));
  curve.add(4, Seconds(1.6));
  curve.add(8, Seconds(3.2));
  EXPECT_DOUBLE_EQ(curve.ratio(6), 2.4);
  EXPECT_DOUBLE_EQ(curve.ratio(10), 5.2);
  for (int64_t waiting = 1; waiting <= 40; ++waiting) {
    const int64_t best = curve.best(waiting, 7);
    const auto mean = [&](int64_t n) {  // of the times at which whole batches of n are done
      return curve.ratio(n) * (static_cast<double>(waiting) / static_cast<double>(n) + 1) / 2;
    };
    for (int64_t n = 1; n <= std::min<int64_t>(waiting, 7); ++n)
      EXPECT_LE(mean(best), mean(n) + 1e-9) << waiting;
    EXPECT_LE(best, std::min<int64_t>(waiting, 7));
  }
  EXPECT_EQ(curve.best(4, 16), 4);
  EXPECT_EQ(curve.best(4, 3), 3);
  curve.lacks_memory(3);
  EXPECT_EQ(curve.best(4, 16), 2);
  // Where two take nearly as long as one after the other, they share steps only if many more wait.
  CostCurve flat;
  flat.add(1, Seconds(1));
  flat.add(2, Seconds(1.7));
  EXPECT_EQ(flat.best(2, 2), 1);
  EXPECT_EQ(flat.best(40, 2), 2);
}

TEST(CostCurve, FollowsWhatIsMeasured) {
  CostCurve curve;
  curve.add(1, Seconds(1));
  for (int i = 0; i < 100; ++i) curve.add(2, Seconds(1));
  EXPECT_DOUBLE_EQ(curve.ratio(2), 1);
  for (int i = 0; i < 100; ++i) curve.add(2, Seconds(2));
  EXPECT_NEAR(curve.ratio(2), 2, 0.01);
}

// Takes jobs in turn, each as if it was done at once.
std::string order_of(FairQueue& queue, const std::map<FairQueue::Ticket, std::string>& names,
                     const std::map<FairQueue::Ticket, double>& costs) {
  std::string order;
  while (const auto ticket = queue.next(Seconds(10))) {
    queue.take(*ticket);
    queue.advance(Seconds(costs.at(*ticket)));
    queue.release(names.at(*ticket).substr(0, 1));
    order += names.at(*ticket) + " ";
  }
  return order;
}

TEST(FairQueue, LetsOwnersTakeTurnsBySeconds) {
  FairQueue queue;
  std::map<FairQueue::Ticket, std::string> names;
  std::map<FairQueue::Ticket, double> costs;
  const auto push = [&](const std::string& name, double cost) {
    const auto ticket = static_cast<FairQueue::Ticket>(names.size());
    names[ticket] = name;
    costs[ticket] = cost;
    queue.push_back(ticket, name.substr(0, 1), Seconds(cost));
  };
  for (int i = 1; i <= 3; ++i) push("a" + std::to_string(i), 10);
  for (int i = 1; i <= 6; ++i) push("b" + std::to_string(i), 4);
  EXPECT_EQ(order_of(queue, names, costs), "b1 b2 a1 b3 b4 a2 b5 b6 a3 ");
  EXPECT_EQ(queue.size(), 0U);
}

TEST(FairQueue, GivesNothingForTimeWithoutWork) {
  FairQueue queue;
  for (int i = 0; i < 10; ++i) {
    queue.push_back(i, "early", Seconds(10));
    queue.take(i);
    queue.advance(Seconds(10));
    queue.release("early");
  }
  // Neither has a lead now: what one did while nobody else had work counts for nothing.
  queue.push_back(20, "early", Seconds(5));
  queue.push_back(21, "late", Seconds(5));
  EXPECT_EQ(queue.next(Seconds(10)), 20);
  queue.take(20);
  queue.push_back(22, "early", Seconds(5));
  EXPECT_EQ(queue.next(Seconds(10)), 21);
}

TEST(FairQueue, GivesBackWhatIsNotUsed) {
  FairQueue queue;
  queue.push_back(0, "a", Seconds(100));
  queue.push_back(1, "a", Seconds(10));
  queue.push_back(2, "b", Seconds(20));
  queue.push_back(3, "b", Seconds(20));
  queue.take(0);
  queue.advance(Seconds(4));
  EXPECT_EQ(queue.next(Seconds(10)), 2);
  queue.give_back("a", Seconds(96));
  queue.release("a");
  EXPECT_EQ(queue.next(Seconds(10)), 1);  // an account of 4 + 10 is less than one of 20
  EXPECT_EQ(queue.tag(1), Seconds(14));
  EXPECT_EQ(queue.virtual_time(), Seconds(2));
}

TEST(FairQueue, PutsWhatIsDueFirst) {
  FairQueue queue;
  EXPECT_EQ(queue.push_back(0, "a", Seconds(15)), Seconds(30));
  queue.push_back(1, "b", Seconds(1000));
  queue.take(1);  // before its turn
  queue.advance(Seconds(20));
  const Seconds due = queue.push_back(2, "c", Seconds(6));
  EXPECT_EQ(due, Seconds(22));
  EXPECT_EQ(queue.next(Seconds(10)), 0);
  queue.advance(Seconds(35.9));  // an equal share of which would have finished c nearly twice
  EXPECT_EQ(queue.next(Seconds(10)), 0);
  queue.advance(Seconds(0.2));
  EXPECT_TRUE(queue.is_overdue(due));
  EXPECT_EQ(queue.next(Seconds(10)), 2);
}

// What comes before a job, compared with taking all jobs in turn: exact within one owner, and among owners
// within one of the largest jobs of each.
TEST(FairQueue, KnowsWhatComesBeforeAJob) {
  std::mt19937 random(2);
  for (int round = 0; round < 30; ++round) {
    const int owners = 1 + static_cast<int>(random() % 8);
    FairQueue queue;
    std::map<FairQueue::Ticket, double> costs;
    std::map<FairQueue::Ticket, std::string> names;
    for (FairQueue::Ticket i = 0; i < 200; ++i) {
      costs[i] = 1 + static_cast<double>(random() % 90) / 10;
      names[i] = std::string(1, static_cast<char>('a' + random() % owners));
      queue.push_back(i, names[i], Seconds(costs[i]));
      if (random() % 4 == 0) {
        queue.erase(i);
        costs.erase(i);
      }
    }
    std::map<FairQueue::Ticket, FairQueue::Ahead> ahead;
    for (const auto& [ticket, cost] : costs) ahead[ticket] = queue.ahead(ticket);
    double jobs = 0, work = 0;
    while (const auto ticket = queue.next(Seconds(10))) {
      const FairQueue::Ahead& expected = ahead.at(*ticket);
      const double slack = owners == 1 ? 1e-6 : 10 * owners;
      ASSERT_NEAR(expected.work.count(), work, slack) << owners;
      ASSERT_NEAR(expected.jobs, jobs, owners == 1 ? 1e-6 : 10 * owners) << owners;
      queue.take(*ticket);
      queue.advance(Seconds(costs.at(*ticket)));
      queue.release(names.at(*ticket));
      jobs += 1;
      work += costs.at(*ticket);
    }
  }
}

}  // namespace
}  // namespace tessera::serve
