#include "serve/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"

namespace tessera::serve {
namespace {

using Ids = std::vector<std::string>;

Job job(const std::string& id, double seconds = 10, const std::string& batch_key = "512") {
  return {.id = id,
          .owner = id.substr(0, 1),
          .batch_key = batch_key,
          .estimate = Seconds(seconds),
          .steps = 9,
          .bytes = 100};
}

Job job_until(const std::string& id, double seconds, double deadline) {
  Job result = job(id, seconds);
  result.deadline = Seconds(deadline);
  return result;
}

// The jobs of each run that begins, joined by '+'.
Ids begun(const Decision& decision) {
  Ids result;
  for (const Decision::Start& start : decision.begun) {
    std::string joined;
    for (const std::string& id : start.jobs) joined += (joined.empty() ? "" : "+") + id;
    result.push_back(joined);
  }
  return result;
}

// A scheduler with one world, and a clock.
class SchedulerTest : public testing::Test {
 protected:
  void make(SchedulerOptions options) {
    scheduler_.emplace(options);
    scheduler_->ready(0);
  }
  void SetUp() override { make({}); }

  void submit(const Job& job) { ASSERT_FALSE(scheduler_->submit(job, now_)) << job.id; }
  Decision decide(WorldId world = 0) {
    Decision decision = scheduler_->decide(world, now_);
    if (!decision.begun.empty()) last_ = decision.begun.back().run;
    return decision;
  }
  // Ends the run that began last, after the seconds of its estimate, and decides.
  Decision next(double seconds) {
    now_ += Seconds(seconds);
    scheduler_->completed(last_);
    return decide();
  }
  // The world has ended the step of the run that was dropped or set aside last, and decides.
  Decision let_go(const Decision& before) {
    for (const RunId run : before.dropped) scheduler_->let_go(run);
    if (before.set_aside) scheduler_->let_go(*before.set_aside);
    return decide();
  }
  // A batch of n takes 1 + (n - 1) / 10 of the time of one.
  void measure_batches() {
    for (int64_t n = 1; n <= 16; ++n)
      scheduler_->measured("512", n, Seconds(0.9 + 0.1 * static_cast<double>(n)));
  }

  std::optional<Scheduler> scheduler_;
  Seconds now_{100};
  RunId last_ = 0;
};

TEST_F(SchedulerTest, TakesTurnsBetweenOwners) {
  for (const char* id : {"a1", "a2", "a3", "b1", "b2"}) submit(job(id));
  Ids order = begun(decide());
  while (scheduler_->queued() > 0) order.push_back(begun(next(10)).front());
  EXPECT_EQ(order, (Ids{"a1", "b1", "a2", "b2", "a3"}));
  EXPECT_EQ(scheduler_->state("a3"), JobState::kRunning);
  EXPECT_EQ(scheduler_->state("a1"), JobState::kEncoding);
  scheduler_->finished("a1");
  EXPECT_EQ(scheduler_->state("a1"), std::nullopt);
  EXPECT_EQ(scheduler_->size(), 4);
}

TEST_F(SchedulerTest, OneRunAtATimeUnlessTold) {
  submit(job("a1"));
  submit(job("b1"));
  EXPECT_EQ(begun(decide()), Ids{"a1"});
  EXPECT_EQ(begun(decide()), Ids{});
  make({.max_runs = 2});
  submit(job("a1"));
  submit(job("b1"));
  submit(job("c1"));
  EXPECT_EQ(begun(decide()), (Ids{"a1", "b1"}));
}

TEST_F(SchedulerTest, RunsInTurnsHaveABatchKeyInCommon) {
  make({.max_runs = 3});
  submit(job("a1"));
  submit(job("a2", 10, "1024"));
  submit(job("a3"));
  EXPECT_EQ(begun(decide()), Ids{"a1"});
  EXPECT_EQ(begun(next(10)), Ids{"a2"});  // a3 does not go before it for ever
  EXPECT_EQ(begun(next(10)), Ids{"a3"});
  Job alone = job("a4");
  alone.may_join = false;
  submit(alone);
  EXPECT_EQ(begun(decide()), Ids{});
  EXPECT_EQ(begun(next(10)), Ids{"a4"});
}

TEST_F(SchedulerTest, RefusesWhatExceedsItsBounds) {
  make({.max_jobs = 4, .max_jobs_of_owner = 3, .max_bytes = 1000});
  for (const char* id : {"a1", "a2", "a3"}) submit(job(id));
  decide();
  const std::optional<Refusal> of_owner = scheduler_->submit(job("a4", 20), now_);
  ASSERT_TRUE(of_owner);
  EXPECT_EQ(of_owner->reason, Refusal::Reason::kOwnerFull);
  EXPECT_EQ(of_owner->retry_after, Seconds(30));  // of one that runs and two that wait
  scheduler_->ready(1);
  scheduler_->ready(2);
  EXPECT_EQ(scheduler_->submit(job("a4", 20), now_)->retry_after, Seconds(10));
  Job large = job("b1");
  large.bytes = 701;
  EXPECT_EQ(scheduler_->submit(large, now_)->reason, Refusal::Reason::kBytesFull);
  large.bytes = 1001;
  EXPECT_EQ(scheduler_->submit(large, now_)->reason, Refusal::Reason::kTooLarge);
  EXPECT_EQ(scheduler_->submit(large, now_)->retry_after, std::nullopt);
  large.bytes = 700;
  submit(large);
  EXPECT_EQ(scheduler_->bytes(), 1000U);
  EXPECT_EQ(scheduler_->submit(job("c1"), now_)->reason, Refusal::Reason::kQueueFull);
  scheduler_->cancel("b1");
  submit(job("c1"));
  EXPECT_EQ(scheduler_->bytes(), 400U);
  EXPECT_THROW(scheduler_->restore(job("c1"), 0), InternalError);
  scheduler_->restore(job("a9"), 0);  // was accepted before, whatever the bounds are now
  EXPECT_EQ(scheduler_->size(), 5);
}

TEST_F(SchedulerTest, CancelsAtOnceOrAtTheNextStep) {
  submit(job("a1"));
  submit(job("a2"));
  decide();
  EXPECT_EQ(scheduler_->cancel("a2"), Cancelled::kAtOnce);
  EXPECT_EQ(scheduler_->cancel("a2"), Cancelled::kHasNoEffect);
  EXPECT_EQ(scheduler_->cancel("a1"), Cancelled::kAtNextStep);
  EXPECT_EQ(scheduler_->cancel("a1"), Cancelled::kAtNextStep);
  EXPECT_EQ(scheduler_->state("a1"), JobState::kRunning);
  const Decision decision = decide();
  EXPECT_EQ(decision.ended, (std::vector<Ended>{{"a1", JobState::kCancelled}}));
  EXPECT_EQ(decision.dropped, std::vector<RunId>{last_});
  EXPECT_EQ(scheduler_->cancel("a1"), Cancelled::kHasNoEffect);
  EXPECT_EQ(scheduler_->size(), 0);
}

TEST_F(SchedulerTest, CancelledJobsAreNotTakenUpAgain) {
  submit(job("a1"));
  decide();
  scheduler_->cancel("a1");
  EXPECT_EQ(scheduler_->lost(0), (std::vector<Ended>{{"a1", JobState::kCancelled}}));
  scheduler_->ready(0);
  submit(job("a2"));
  decide();
  scheduler_->cancel("a2");
  EXPECT_EQ(scheduler_->completed(last_), (std::vector<Ended>{{"a2", JobState::kCancelled}}));
}

TEST_F(SchedulerTest, CancelledJobPaysForItsSteps) {
  submit(job("a1", 100));
  submit(job("a2", 20));
  submit(job("b1", 100));
  EXPECT_EQ(begun(decide()), Ids{"a1"});
  scheduler_->stepped(last_, 1, now_);
  scheduler_->cancel("a1");
  EXPECT_EQ(begun(let_go(decide())), Ids{"a2"});  // 10 + 20 is less than 100
}

TEST_F(SchedulerTest, NothingBeginsBeforeTheStepOfADroppedRunHasEnded) {
  scheduler_->ready(1);
  submit(job("a1", 100));
  submit(job("a2", 100));
  submit(job("a3", 20));
  decide();
  const RunId first = last_;
  decide(1);
  scheduler_->stop(1);
  now_ += Seconds(30);
  scheduler_->stepped(first, 0, now_);
  now_ += Seconds(8);
  scheduler_->stepped(first, 1, now_);  // of which each takes 8 s, not 10
  scheduler_->cancel("a1");
  const Decision decision = decide();
  EXPECT_EQ(decision.dropped, std::vector<RunId>{first});
  EXPECT_TRUE(begun(decision).empty());
  EXPECT_EQ(scheduler_->state("a3"), JobState::kQueued);
  EXPECT_FALSE(scheduler_->is_idle(0));
  EXPECT_EQ(scheduler_->outlook("a3", now_)->jobs_ahead, 0);
  EXPECT_EQ(scheduler_->outlook("a3", now_)->begins_in, Seconds(108));  // with the run of a2
  now_ += Seconds(5);
  EXPECT_TRUE(begun(decide()).empty());
  EXPECT_EQ(scheduler_->outlook("a3", now_)->begins_in, Seconds(103));
  now_ += Seconds(50);
  EXPECT_EQ(scheduler_->outlook("a3", now_)->begins_in, Seconds(100));  // it takes longer
  EXPECT_EQ(begun(let_go(decision)), Ids{"a3"});
  scheduler_->completed(last_);
  EXPECT_TRUE(scheduler_->is_idle(0));
}

TEST_F(SchedulerTest, ExpiresAtTheDeadline) {
  submit(job_until("a1", 10, 150));
  submit(job_until("a2", 10, 105));
  submit(job("a3"));
  EXPECT_EQ(begun(decide()), Ids{"a1"});  // it is too late for a2
  now_ = Seconds(104);
  EXPECT_TRUE(scheduler_->expire(now_).empty());
  now_ = Seconds(105);
  EXPECT_EQ(scheduler_->expire(now_), Ids{"a2"});
  now_ = Seconds(150);
  const Decision decision = decide();
  EXPECT_EQ(decision.ended, (std::vector<Ended>{{"a1", JobState::kExpired}}));
  EXPECT_EQ(begun(let_go(decision)), Ids{"a3"});
}

TEST_F(SchedulerTest, BeginsEarlierForADeadline) {
  submit(job("a1"));
  submit(job("a2"));
  submit(job_until("a3", 10, 119));
  submit(job("b1"));
  EXPECT_EQ(begun(decide()), Ids{"a3"});
  EXPECT_EQ(begun(next(10)), Ids{"b1"});  // it was not a present
  // If another world is free in time, there is no need.
  make({});
  scheduler_->ready(1);
  submit(job("a1"));
  submit(job_until("b1", 15, now_.count() + 16));
  EXPECT_EQ(begun(decide()), Ids{"a1"});
  EXPECT_EQ(begun(decide(1)), Ids{"b1"});
}

TEST_F(SchedulerTest, DeadlinesDoNotMakeAnOwnerGoFirstForEver) {
  make({.quantum = Seconds(30)});
  submit(job("b1"));
  for (int i = 0; i < 9; ++i) submit(job_until("a" + std::to_string(i), 10, now_.count() + 11 + 10 * i));
  int before = 0;
  for (Decision decision = decide(); begun(decision) != Ids{"b1"}; decision = next(10)) ++before;
  EXPECT_GT(before, 1);
  EXPECT_LE(before, 4);  // a quantum, and what would have been its turn
}

TEST_F(SchedulerTest, BatchesStrangersOfOneKey) {
  measure_batches();
  submit(job("a1"));
  submit(job("b1", 10, "1024"));
  submit(job("c1"));
  submit(job("d1"));
  EXPECT_EQ(begun(decide()), Ids{"a1+c1+d1"});
  EXPECT_EQ(begun(next(12)), Ids{"b1"});
  for (const char* id : {"a2", "c2", "b2", "d2"}) submit(job(id));
  scheduler_->cancel("c2");
  EXPECT_EQ(begun(next(10)), Ids{"a2+d2+b2"});  // b has had more
  // One that is cancelled leaves the others.
  scheduler_->cancel("b2");
  Decision decision = decide();
  EXPECT_EQ(decision.ended, (std::vector<Ended>{{"b2", JobState::kCancelled}}));
  EXPECT_TRUE(decision.dropped.empty());
  scheduler_->completed(last_);
  EXPECT_EQ(scheduler_->state("d2"), JobState::kEncoding);
}

TEST_F(SchedulerTest, BatchesOnlyWhereItIsFaster) {
  for (const char* id : {"a1", "b1", "c1", "d1"}) submit(job(id));
  EXPECT_EQ(begun(decide()), Ids{"a1"});  // nothing is known
  scheduler_->measured("512", 1, Seconds(1));
  for (int64_t n = 2; n <= 4; ++n) scheduler_->measured("512", n, Seconds(static_cast<double>(n)));
  EXPECT_EQ(begun(next(10)), Ids{"b1"});
}

TEST_F(SchedulerTest, BatchesHaveAtMostSoManyPictures) {
  make({.max_pictures = 4});
  measure_batches();
  Job two = job("b1");
  two.pictures = 2;
  submit(job("a1"));
  submit(two);
  two.id = "c1", two.owner = "c";
  submit(two);
  submit(job("d1"));
  EXPECT_EQ(begun(decide()), Ids{"a1+b1+d1"});
  EXPECT_EQ(begun(next(10)), Ids{"c1"});
}

TEST_F(SchedulerTest, BatchesDoNotBreakDeadlines) {
  measure_batches();
  submit(job_until("a1", 10, now_.count() + 10.5));
  submit(job("b1"));
  EXPECT_EQ(begun(decide()), Ids{"a1"});  // 11 s together
  EXPECT_EQ(begun(next(10)), Ids{"b1"});
}

TEST_F(SchedulerTest, BatchesDoNotTakeAnOwnerFarAhead) {
  make({.quantum = Seconds(15)});
  measure_batches();
  for (int i = 0; i < 9; ++i) submit(job("a" + std::to_string(i)));
  submit(job("b1", 20, "1024"));
  EXPECT_EQ(begun(decide()), (Ids{"a0+a1+a2"}));  // 30 is not more than 20 + 15
}

TEST_F(SchedulerTest, JobsOfALostWorldGoOnFromTheirSavedStep) {
  scheduler_->ready(1);
  submit(job("a1"));
  submit(job("a2"));
  submit(job("a3"));
  decide();
  const RunId run = last_;
  EXPECT_EQ(begun(decide(1)), Ids{"a2"});
  scheduler_->stepped(run, 6, now_);
  scheduler_->saved(run, 5);
  EXPECT_TRUE(scheduler_->lost(0).empty());
  EXPECT_EQ(scheduler_->state("a1"), JobState::kQueued);
  EXPECT_TRUE(begun(decide(0)).empty());  // it is not there
  EXPECT_EQ(scheduler_->outlook("a1", now_)->jobs_ahead, 0);
  EXPECT_EQ(scheduler_->outlook("a1", now_)->ends_in, Seconds(15));  // ten of a2, and the half of its own
  scheduler_->ready(0);
  const Decision decision = decide();
  EXPECT_EQ(begun(decision), Ids{"a1"});
  EXPECT_EQ(decision.begun.front().saved, (SavedStep{.run = run, .step = 5}));
  EXPECT_NE(last_, run);
  // Messages about what has gone have no effect.
  scheduler_->stepped(run, 9, now_);
  scheduler_->saved(run, 9);
  EXPECT_TRUE(scheduler_->completed(run).empty());
  EXPECT_EQ(scheduler_->state("a1"), JobState::kRunning);
  EXPECT_EQ(scheduler_->crashes("a1"), 1);
  EXPECT_EQ(scheduler_->crashes("a2"), 0);
}

TEST_F(SchedulerTest, WhatIsNoLongerSavedBeginsAnew) {
  submit(job("a1"));
  decide();
  const RunId run = last_;
  scheduler_->saved(run, 5);
  scheduler_->lost(0);
  scheduler_->unsaved(run);
  scheduler_->ready(0);
  EXPECT_EQ(scheduler_->outlook("a1", now_)->ends_in, Seconds(10));
  EXPECT_EQ(decide().begun.front().saved, std::nullopt);
}

TEST_F(SchedulerTest, ABatchIsTakenUpAsOne) {
  measure_batches();
  for (const char* id : {"a1", "b1", "c1"}) submit(job(id));
  EXPECT_EQ(begun(decide()), Ids{"a1+b1+c1"});
  const RunId run = last_;
  scheduler_->saved(run, 4);
  scheduler_->lost(0);
  scheduler_->cancel("b1");
  submit(job("d1"));
  scheduler_->ready(0);
  const Decision decision = decide();
  EXPECT_EQ(begun(decision), Ids{"a1+c1"});
  EXPECT_EQ(decision.begun.front().saved, (SavedStep{.run = run, .step = 4, .is_shared = true}));
}

TEST_F(SchedulerTest, RunsAloneAfterTwoCrashesAndFailsAtTheThird) {
  make({.max_runs = 4});
  measure_batches();
  const auto crash = [&] {
    const std::vector<Ended> ended = scheduler_->lost(0);
    scheduler_->ready(0);
    return ended;
  };
  submit(job("a1"));
  submit(job("b1"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(begun(decide()), Ids{"a1+b1"});
    EXPECT_TRUE(crash().empty());
  }
  submit(job("c1"));
  EXPECT_EQ(begun(decide()), Ids{"a1"});  // neither in a batch nor beside another run
  EXPECT_EQ(crash(), (std::vector<Ended>{{"a1", JobState::kFailed}}));
  EXPECT_EQ(begun(decide()), Ids{"b1"});
  EXPECT_EQ(begun(next(10)), Ids{"c1"});
  EXPECT_EQ(scheduler_->state("b1"), JobState::kEncoding);
  // It waits for the end of other runs, and no other begins meanwhile.
  scheduler_->restore(job("d1"), 2);
  submit(job("e1"));
  EXPECT_EQ(begun(decide()), Ids{});
  EXPECT_EQ(begun(next(10)), Ids{"d1"});
}

TEST_F(SchedulerTest, AFailureIsTheJobsOwn) {
  measure_batches();
  for (const char* id : {"a1", "b1"}) submit(job(id));
  EXPECT_EQ(begun(decide()), Ids{"a1+b1"});
  EXPECT_TRUE(scheduler_->failed(last_).empty());  // whose it is shows when each runs by itself
  EXPECT_EQ(begun(decide()), Ids{"a1"});
  EXPECT_EQ(scheduler_->failed(last_), (std::vector<Ended>{{"a1", JobState::kFailed}}));
  EXPECT_EQ(begun(decide()), Ids{"b1"});
  EXPECT_EQ(scheduler_->crashes("b1"), 0);
  EXPECT_EQ(scheduler_->cancel("a1"), Cancelled::kHasNoEffect);
}

TEST_F(SchedulerTest, ALongRunMakesRoomForAShortJobOfAnother) {
  submit(job("a1", 1000));
  decide();
  const RunId run = last_;
  scheduler_->stepped(run, 3, now_);
  submit(job("a2", 1));
  EXPECT_FALSE(decide().set_aside);  // its own owner's jobs wait
  submit(job("b1", 5));
  const Decision decision = decide();
  EXPECT_EQ(decision.set_aside, run);
  EXPECT_TRUE(begun(decision).empty());
  submit(job("c1", 1));
  const Decision second = decide();
  EXPECT_FALSE(second.set_aside);
  EXPECT_TRUE(begun(second).empty());  // the step that is saved has not ended
  EXPECT_EQ(scheduler_->state("b1"), JobState::kQueued);
  EXPECT_EQ(begun(let_go(decision)), Ids{"b1"});  // for which it has made room
  EXPECT_EQ(begun(next(5)), Ids{"c1"});
  const Decision back = next(1);
  EXPECT_EQ(begun(back), Ids{"a1"});
  EXPECT_EQ(back.begun.front().saved, (SavedStep{.run = run, .step = 3}));
}

TEST_F(SchedulerTest, MakesNoRoomForEqualJobsOrIfItCannotBeSaved) {
  submit(job("a1", 1000));
  decide();
  scheduler_->stepped(last_, 3, now_);
  submit(job("b1", 1000));
  EXPECT_FALSE(decide().set_aside);
  make({});
  Job fixed = job("a1", 1000);
  fixed.may_be_saved = false;
  submit(fixed);
  decide();
  submit(job("b1", 5));
  EXPECT_FALSE(decide().set_aside);
  scheduler_->ready(1);
  EXPECT_FALSE(decide().set_aside);  // nor if another world has room
}

TEST_F(SchedulerTest, MakesRoomForADeadlineUnlessItsOwnForbids) {
  submit(job("a1", 40));
  decide();
  submit(job_until("b1", 20, now_.count() + 30));
  EXPECT_EQ(begun(let_go(decide())), Ids{"b1"});
  make({});
  submit(job_until("a1", 40, now_.count() + 50));
  decide();
  submit(job_until("b1", 20, now_.count() + 30));
  EXPECT_EQ(begun(decide()), Ids{});
}

TEST_F(SchedulerTest, DrainsAndStops) {
  scheduler_->ready(1);
  submit(job("a1"));
  decide(0);
  submit(job("a2"));
  scheduler_->stop(1);
  EXPECT_TRUE(begun(decide(1)).empty());
  EXPECT_TRUE(scheduler_->is_idle(1));
  EXPECT_FALSE(scheduler_->is_idle(0));
  scheduler_->drain();
  EXPECT_EQ(scheduler_->submit(job("a3"), now_)->reason, Refusal::Reason::kDraining);
  EXPECT_TRUE(begun(next(10)).empty());
  EXPECT_TRUE(scheduler_->is_idle(0));
  EXPECT_EQ(scheduler_->state("a1"), JobState::kEncoding);
  EXPECT_EQ(scheduler_->state("a2"), JobState::kQueued);
}

TEST_F(SchedulerTest, SaysWhenAJobWillEnd) {
  scheduler_->ready(1);
  submit(job("a0", 40));
  decide();
  for (const char* id : {"a1", "a2", "a3"}) submit(job(id, 20));
  const std::optional<Outlook> outlook = scheduler_->outlook("a3", now_);
  EXPECT_EQ(outlook->jobs_ahead, 2);
  EXPECT_EQ(outlook->begins_in, Seconds(40));  // of 40 that run and 40 that wait, on two worlds
  EXPECT_EQ(outlook->ends_in, Seconds(60));
  EXPECT_EQ(scheduler_->outlook("a0", now_), std::nullopt);
  submit(job("b1", 20));  // comes before most of the other owner's jobs
  EXPECT_LE(scheduler_->outlook("b1", now_)->jobs_ahead, 1);
}

}  // namespace
}  // namespace tessera::serve
