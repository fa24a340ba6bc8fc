// Lost worlds, processes that start again, and the disk.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "tests/serve/service_fixture.h"

namespace tessera::serve {
namespace {

// Whoever waits for the disk in this process, by the system's calls for it.
std::atomic<bool> is_disk_watched = false;
std::mutex disk_mutex;
std::set<std::thread::id> waited_for_disk;

void note_wait() {
  if (!is_disk_watched) return;
  const std::lock_guard lock(disk_mutex);
  waited_for_disk.insert(std::this_thread::get_id());
}

TEST_F(ServiceTest, ALostWorldChangesNoPicture) {
  std::mt19937 random(7);
  options_.scheduler.max_jobs = 1000;
  start();
  add_world();
  int64_t resumed = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const std::string id = accept(request(seed, 20));
    for (int deaths = 0; deaths < 2; ++deaths) {
      step(static_cast<int64_t>(random() % 12));
      world().die();
      service_->read_world(0);
      EXPECT_NE(state(id), JobState::kFailed);
      add_world();
    }
    const JobView view = finish(id);
    ASSERT_EQ(view.state, JobState::kSucceeded) << seed;
    EXPECT_LE(view.attempts, 2);
    EXPECT_EQ(bytes_of_file(view.results.at(0).path), expected_file(view)) << seed;
    resumed += count_orders(world(), WorldOrder::Kind::kResume);
  }
  EXPECT_GT(resumed, 6);
}

TEST_F(ServiceTest, AJobThatLosesThreeWorldsHasFailed) {
  start();
  const std::string id = accept(request(1, 20));
  for (int deaths = 0; deaths < 3; ++deaths) {
    start();  // which forgets nothing
    EXPECT_EQ(state(id), JobState::kQueued);
    EXPECT_EQ(find(id)->attempts, deaths);
    add_world();
    step(2);
    world().die();
    service_->read_world(0);
  }
  const auto view = find(id);
  ASSERT_TRUE(view && view->error);
  EXPECT_EQ(view->state, JobState::kFailed);
  EXPECT_EQ(view->error->code, "crashed");
  EXPECT_EQ(view->attempts, 3);
  add_world();
  const std::string other = accept(request(2));
  EXPECT_EQ(finish(other).state, JobState::kSucceeded);
}

TEST_F(ServiceTest, AnotherProcessTakesUpTheQueueAndWhatWasSaved) {
  start();
  add_world();
  const std::string first = accept(request(1, 20)), second = accept(request(2, 20));
  step(9);
  EXPECT_EQ(state(first), JobState::kRunning);
  start();
  EXPECT_EQ(state(first), JobState::kQueued);
  EXPECT_EQ(find(second)->outlook->jobs_ahead, 1);
  // A step takes a second, and what is beside the steps, which has not been measured, as long as one.
  const double left = 21.0 - static_cast<double>(find(first)->step);
  EXPECT_NEAR(find(first)->outlook->ends_in.count(), left, 1e-9);
  EXPECT_NEAR(find(second)->outlook->ends_in.count(), left + 21, 1e-9);
  add_world();
  world().take_orders();
  EXPECT_EQ(count_orders(world(), WorldOrder::Kind::kResume), 1);
  EXPECT_GE(world().runs.begin()->second.step, 6);
  for (const std::string& id : {first, second}) {
    const JobView view = finish(id);
    ASSERT_EQ(view.state, JobState::kSucceeded);
    EXPECT_EQ(bytes_of_file(view.results.at(0).path), expected_file(view));
  }
  start();
  EXPECT_EQ(state(first), JobState::kSucceeded);
  EXPECT_EQ(list({}).size(), 2);
}

TEST_F(ServiceTest, WhatAnotherMachineAcceptedNeedsItsMemoryHereToo) {
  start();
  JobRequest large = request();
  large.request.height = large.request.width = 1024;
  const std::string first = accept(large), second = accept(large), small = accept(request());
  options_.memory = {{.name = "this machine", .most = uint64_t{32} << 20}};
  start();
  for (const std::string& id : {first, second}) {
    wait_for([&] { return state(id) == JobState::kFailed; });
    const std::optional<JobView> view = find(id);
    ASSERT_TRUE(view && view->error);
    EXPECT_EQ(view->error->code, "out_of_memory");
    EXPECT_TRUE(view->error->message.starts_with("the run needs about ")) << view->error->message;
  }
  EXPECT_EQ(state(small), JobState::kQueued);
  add_world();
  EXPECT_EQ(finish(small).state, JobState::kSucceeded);
}

TEST_F(ServiceTest, AWorldThatAFrontFindsDropsItsRuns) {
  start();
  FakeWorld& found = add_world(0, false);
  found.take_orders();
  EXPECT_EQ(count_orders(found, WorldOrder::Kind::kDropAll), 1);
  found.tell({.kind = WorldEvent::Kind::kStep, .run = 5, .step = 1, .steps = 2});
  service_->read_world(0);  // of a run that is not known
  EXPECT_FALSE(service_->status().is_ready());
  EXPECT_FALSE(service_->status().worlds.at(0).is_finishing);
  service_->world_loaded(0);  // says the supervisor
  EXPECT_TRUE(service_->status().worlds.at(0).is_finishing);
  found.ready();
  service_->read_world(0);
  ASSERT_TRUE(service_->status().is_ready());
  EXPECT_FALSE(service_->status().worlds.at(0).is_finishing);
  EXPECT_EQ(service_->status().worlds.at(0).ranks, 1);
}

// It may be in a step that takes long.
TEST_F(ServiceTest, AWorldThatAFrontFindsHasTimeToAnswer) {
  start();
  add_world(0, false);
  service_->world_loaded(0);
  for (int i = 0; i < 590; ++i) pass(1);
  EXPECT_TRUE(replaced_.empty());
  for (int i = 0; i < 20; ++i) pass(1);
  EXPECT_EQ(replaced_, std::vector<WorldId>{0});
}

TEST_F(ServiceTest, RunsAreSavedNowAndThen) {
  start();
  add_world();
  accept(request(1, 20));
  step(10);
  const int64_t saves = count_orders(world(), WorldOrder::Kind::kSave);
  EXPECT_GE(saves, 3);
  EXPECT_LE(saves, 5);
}

TEST_F(ServiceTest, ASilentWorldIsReplaced) {
  start();
  FakeWorld& world = add_world();
  pass(0);
  for (int i = 0; i < 6; ++i) pass(1.5);
  EXPECT_TRUE(replaced_.empty());
  world.alive();
  service_->read_world(0);
  for (int i = 0; i < 6; ++i) pass(1.5);
  EXPECT_TRUE(replaced_.empty());
  pass(1.5);
  EXPECT_EQ(replaced_, std::vector<WorldId>{0});
  pass(1.5);
  EXPECT_EQ(replaced_.size(), 1);  // once
}

TEST_F(ServiceTest, AWorldThatStopsWhileItDenoisesIsReplacedAfterSeveralSteps) {
  start();
  FakeWorld& world = add_world();
  accept(request(1, 40));
  step(3);
  world.is_stuck = true;
  for (int i = 0; i < 6; ++i) pass(1.5);
  EXPECT_TRUE(replaced_.empty());
  pass(1.5);
  EXPECT_EQ(replaced_, std::vector<WorldId>{0});
}

TEST_F(ServiceTest, TheNextJobWaitsForTheStepOfOneThatHasEnded) {
  start();
  FakeWorld& world = add_world();
  const std::string first = accept(request(1, 20)), next = accept(request(2));
  step(3);
  EXPECT_FALSE(service_->status().worlds.at(0).is_finishing);
  service_->cancel("ann", first, [](const std::optional<JobView>&) {});
  EXPECT_EQ(state(first), JobState::kCancelled);
  JobView view = *find(next);
  EXPECT_EQ(view.state, JobState::kQueued);
  EXPECT_FALSE(view.started);
  ASSERT_TRUE(view.outlook);
  EXPECT_EQ(view.outlook->jobs_ahead, 0);
  EXPECT_EQ(view.outlook->begins_in, Seconds(1));  // of the step under way
  EXPECT_TRUE(service_->status().worlds.at(0).is_finishing);
  EXPECT_EQ(service_->status().running, 0);
  pass(0.4);
  EXPECT_NEAR(find(next)->outlook->begins_in.count(), 0.6, 1e-9);
  EXPECT_EQ(state(next), JobState::kQueued);
  world.take_orders();
  service_->read_world(0);
  view = *find(next);
  EXPECT_EQ(view.state, JobState::kRunning);
  EXPECT_EQ(view.started, wall());
  EXPECT_FALSE(service_->status().worlds.at(0).is_finishing);
  EXPECT_EQ(finish(next).state, JobState::kSucceeded);
}

// Nobody waits for the result of its step, but another world would have to load the model first.
TEST_F(ServiceTest, AWorldMayEndALongStepOfAJobThatIsCancelled) {
  start();
  FakeWorld& world = add_world();
  const std::string id = accept(request(1, 40));
  world.take_orders();
  service_->read_world(0);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 20; ++j) pass(1);
    world.step();
    service_->read_world(0);
  }
  service_->cancel("ann", id, [](const std::optional<JobView>&) {});
  for (int i = 0; i < 95; ++i) pass(1);
  EXPECT_TRUE(replaced_.empty());
  for (int i = 0; i < 10; ++i) pass(1);  // five steps
  EXPECT_EQ(replaced_, std::vector<WorldId>{0});
}

TEST_F(ServiceTest, AnIdleWorldThatHangsKeepsNoJob) {
  start();
  FakeWorld& world = add_world();
  pass(0);
  accept(request(1, 40));  // which it does not take
  for (int i = 0; i < 6; ++i) pass(1.5);
  EXPECT_TRUE(replaced_.empty());
  pass(1.5);
  EXPECT_EQ(replaced_, std::vector<WorldId>{0});
  EXPECT_EQ(world.orders.back().kind, WorldOrder::Kind::kBegin);
}

// A run that is dropped as it begins may be amid what comes before its steps.
TEST_F(ServiceTest, AWorldMayEndWhatItHasJustBegun) {
  start();
  FakeWorld& world = add_world();
  pass(0);
  const std::string id = accept(request(1, 40));
  service_->cancel("ann", id, [](const std::optional<JobView>&) {});
  world.tell({.kind = WorldEvent::Kind::kBegun, .run = world.orders.back().run});
  service_->read_world(0);
  for (int i = 0; i < 60; ++i) pass(1.5);
  EXPECT_TRUE(replaced_.empty());
  world.take_orders();
  service_->read_world(0);
  for (int i = 0; i < 7; ++i) pass(1.5);
  EXPECT_EQ(replaced_, std::vector<WorldId>{0});
}

TEST_F(ServiceTest, AWorldThatHangsWhileItLoadsIsReplaced) {
  start();
  add_world(0, false);
  for (int i = 0; i < 599; ++i) pass(1);
  EXPECT_TRUE(replaced_.empty());
  for (int i = 0; i < 20; ++i) pass(1);
  EXPECT_EQ(replaced_, std::vector<WorldId>{0});
}

// The tiny model with so many bytes of weights.
TEST_F(ServiceTest, ALargeModelMayLoadForLonger) {
  std::filesystem::create_directories(folder_ / "large");
  std::ofstream(folder_ / "large" / "weights").close();
  std::filesystem::resize_file(folder_ / "large" / "weights", 20'000'000'000);
  folder_of_weights_ = folder_ / "large";
  start();
  add_world(0, false);
  for (int i = 0; i < 1599; ++i) pass(1);
  EXPECT_TRUE(replaced_.empty());
  for (int i = 0; i < 20; ++i) pass(1);
  EXPECT_EQ(replaced_, std::vector<WorldId>{0});
}

TEST_F(ServiceTest, AFirstStepMayTakeLong) {
  start();
  FakeWorld& world = add_world();
  accept(request(1, 40));
  world.take_orders();
  service_->read_world(0);
  for (int i = 0; i < 60; ++i) pass(1.5);
  EXPECT_TRUE(replaced_.empty());
}

TEST_F(ServiceTest, TimeInWhichTheFrontStoodStillDoesNotCount) {
  start();
  add_world();
  pass(0);
  pass(60);
  EXPECT_TRUE(replaced_.empty());
}

// Two pictures take as long as one here, so that it is of use to paint strangers' pictures together.
class ServiceBatchTest : public ServiceTest {
 protected:
  void measure(int64_t group = 100) {
    start();
    add_world().group = group;
    JobRequest two = request(1);
    two.request.num_images_per_prompt = 2;
    finish(accept(two));
    finish(accept(request(2)));
  }
  // Of two strangers whose jobs wait for the same world.
  std::vector<std::string> begin_both() {
    const std::string first = accept(request(3));
    std::vector<std::string> ids;
    for (const char* owner : {"ann", "bob"}) {
      JobRequest job = request(10 + ids.size());
      job.owner = owner;
      ids.push_back(accept(job));
    }
    finish(first);
    return ids;
  }
  std::vector<std::string> begin_batch() {
    measure();
    std::vector<std::string> ids = begin_both();
    EXPECT_EQ(world().log.back().requests.size(), 2);
    return ids;
  }
};

TEST_F(ServiceBatchTest, PicturesOfStrangersGoToTheirOwners) {
  const std::vector<std::string> ids = begin_batch();
  const int64_t run = world().runs.begin()->first;
  world().tell({.kind = WorldEvent::Kind::kWarning, .run = run, .message = "the prompt 'of ann' is cut"});
  service_->read_world(0);
  EXPECT_TRUE(find(ids[1], "bob")->warnings.empty());
  finish(ids[0]);
  wait_for([&] { return service_->is_idle(); });
  const JobView ann = *find(ids[0]), bob = *find(ids[1], "bob");
  EXPECT_EQ(bytes_of_file(ann.results.at(0).path), expected_file(ann));
  EXPECT_EQ(bytes_of_file(bob.results.at(0).path), expected_file(bob));
}

TEST_F(ServiceBatchTest, AFailureOfABatchIsNobodysUntilItsJobsRunAlone) {
  const std::vector<std::string> ids = begin_batch();
  step();
  world().fail(ErrorKind::kMemory, "no memory for the prompt of ann");
  service_->read_world(0);
  EXPECT_EQ(find(ids[1], "bob")->error, std::nullopt);
  finish(ids[0]);
  for (int i = 0; i < 10; ++i) step();
  wait_for([&] { return service_->is_idle(); });
  const JobView ann = *find(ids[0]), bob = *find(ids[1], "bob");
  EXPECT_EQ(bytes_of_file(ann.results.at(0).path), expected_file(ann));
  EXPECT_EQ(bytes_of_file(bob.results.at(0).path), expected_file(bob));
  begin_both();
  EXPECT_EQ(world().log.back().requests.size(), 1) << "so many find no memory";
}

TEST_F(ServiceBatchTest, PicturesOfSeveralGroupsTakeTheStepsOfAll) {
  measure(1);
  begin_both();
  EXPECT_EQ(world().log.back().requests.size(), 1);
}

TEST_F(ServiceBatchTest, ABatchGoesOnElsewhereWithoutThoseWhoHaveLeft) {
  const std::vector<std::string> ids = begin_batch();
  step(3);
  service_->cancel("ann", ids[0], [](const auto&) {});
  world().die();
  service_->read_world(0);
  add_world();
  for (int i = 0; i < 10; ++i) step();
  wait_for([&] { return service_->is_idle(); });
  const JobView bob = *find(ids[1], "bob");
  ASSERT_EQ(bob.state, JobState::kSucceeded);
  EXPECT_EQ(bytes_of_file(bob.results.at(0).path), expected_file(bob));
}

TEST_F(ServiceTest, AServerThatDrainsEndsWhatRunsAndKeepsWhatWaits) {
  start();
  add_world();
  const std::string running = accept(request(1)), waiting = accept(request(2));
  JobRequest job = request(3);
  job.is_awaited = true;
  const std::string awaited = accept(job);
  step();
  service_->drain();
  EXPECT_EQ(find(awaited)->error->code, "draining");
  EXPECT_EQ(submit(request(4)).refusal->error.status, 503);
  EXPECT_FALSE(service_->is_idle());
  EXPECT_EQ(finish(running).state, JobState::kSucceeded);
  EXPECT_TRUE(service_->is_idle());
  EXPECT_EQ(state(waiting), JobState::kQueued);
  start();
  add_world();
  EXPECT_EQ(finish(waiting).state, JobState::kSucceeded);
}

TEST_F(ServiceTest, AFullDiskIsToldAndPasses) {
  start();
  add_world();
  options_.journal.max_result_bytes = 10;
  start();
  add_world();
  const JobView view = finish(accept(request()));
  EXPECT_EQ(view.state, JobState::kFailed);
  EXPECT_EQ(view.error->code, "storage");
}

TEST_F(ServiceTest, TheServersThreadNeverWaitsForTheDisk) {
  start();
  add_world();
  is_disk_watched = true;
  const std::string id = accept(request(1, 20));
  finish(id);
  service_->remove("ann", id, [](bool) {});
  finish(accept(request(2)));
  is_disk_watched = false;
  const std::lock_guard lock(disk_mutex);
  EXPECT_FALSE(waited_for_disk.empty());
  EXPECT_FALSE(waited_for_disk.contains(std::this_thread::get_id()));
}

}  // namespace
}  // namespace tessera::serve

// In the place of the system's, also for the libraries.
extern "C" __attribute__((visibility("default"))) int fsync(int descriptor) {
  tessera::serve::note_wait();
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
extern "C" __attribute__((visibility("default"))) int fdatasync(int descriptor) {
  tessera::serve::note_wait();
  return static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}
