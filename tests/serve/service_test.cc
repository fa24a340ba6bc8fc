#include "serve/service.h"

#include "tests/serve/service_fixture.h"

namespace tessera::serve {
namespace {

TEST_F(ServiceTest, AJobGoesThroughItsStatesAndItsFileIsThatOfGenerate) {
  start();
  add_world();
  const std::string id = accept(request());
  EXPECT_TRUE(is_job_id(id));
  std::vector<std::string> states;
  const auto follower = service_->follow("ann", id, 0, [&](const JobUpdate& update) {
    const std::string name(name_of(update.job.state));
    if (states.empty() || states.back() != name) states.push_back(name);
  });
  const JobView view = finish(id);
  EXPECT_EQ(view.state, JobState::kSucceeded);
  EXPECT_EQ(states, (std::vector<std::string>{"running", "encoding", "succeeded"}));
  ASSERT_EQ(view.results.size(), 1);
  EXPECT_EQ(view.results[0].content_type, "image/png");
  EXPECT_EQ(bytes_of_file(view.results[0].path), expected_file(view));
  EXPECT_TRUE(view.started && view.ended && view.expires);
  EXPECT_EQ(view.step, 4);
  EXPECT_EQ(view.seeds, std::vector<uint64_t>{1});
  EXPECT_EQ(service_->follow("ann", id, 0, [](const JobUpdate&) {}), nullptr);  // it has ended
}

TEST_F(ServiceTest, AJobSaysHowLongItsRunTookAndItsFiles) {
  start();
  add_world();
  JobRequest two = request();
  two.request.num_images_per_prompt = 2;
  const std::string id = accept(two);
  std::optional<engine::Seconds> told;
  const auto follower =
      service_->follow("ann", id, 0, [&](const JobUpdate& update) { told = update.job.seconds; });
  const std::optional<engine::Seconds> stored = finish(id).seconds;
  ASSERT_TRUE(told && stored);
  EXPECT_EQ(told->load, 1);
  EXPECT_EQ(told->encode, 2);
  EXPECT_EQ(told->denoise, 30);
  EXPECT_EQ(told->decode, 4);
  // In place of the 5 s for which the world told of the pictures.
  EXPECT_GT(told->write, 0);
  EXPECT_NE(told->write, 5);
  EXPECT_EQ(told->total, 38 + told->write);
  EXPECT_EQ(stored->total, told->total);
  EXPECT_EQ(stored->write, told->write);
}

TEST_F(ServiceTest, UpdatesAscendAndTellEachStepAndResult) {
  start();
  add_world();
  const std::string id = accept(request(3));
  std::vector<int64_t> steps;
  std::vector<uint64_t> numbers;
  std::string file;
  const auto follower = service_->follow("ann", id, 0, [&](const JobUpdate& update) {
    numbers.push_back(update.number);
    if (update.kind == JobUpdate::Kind::kStep) steps.push_back(update.job.step);
    if (update.kind == JobUpdate::Kind::kResult) file = *update.bytes;
  });
  const JobView view = finish(id);
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(std::ranges::is_sorted(numbers, std::less_equal<>()) && !numbers.empty());
  EXPECT_EQ(file, expected_file(view));
}

TEST_F(ServiceTest, AJobThatIsAwaitedAndNotStoredLeavesNothing) {
  start();
  add_world();
  JobRequest job = request();
  job.is_awaited = true;
  job.is_stored = false;
  const auto answer = begin_submit(job);
  ASSERT_TRUE(answer->view);  // at once
  std::string file;
  JobState state = JobState::kQueued;
  const std::string id = answer->view->id;
  const auto follower = service_->follow("ann", id, 0, [&](const JobUpdate& update) {
    if (update.kind == JobUpdate::Kind::kResult) file = *update.bytes;
    state = update.job.state;
  });
  step(5);
  wait_for([&] { return has_ended(state); });
  EXPECT_EQ(state, JobState::kSucceeded);
  EXPECT_EQ(file, expected_file(*answer->view));
  EXPECT_FALSE(find(id));
  EXPECT_TRUE(list({}).empty());
}

TEST_F(ServiceTest, ARequestThatIsSentAgainIsServedOnce) {
  start();
  add_world();
  JobRequest job = request();
  job.idempotency_key = "key";
  job.body_hash = "body";
  const std::string id = accept(job);
  Answer again = submit(job);
  ASSERT_TRUE(again.view);
  EXPECT_TRUE(again.is_attached);
  EXPECT_EQ(again.view->id, id);
  JobRequest another = job;
  another.body_hash = "another body";
  again = submit(another);
  ASSERT_TRUE(again.refusal);
  EXPECT_EQ(again.refusal->error.status, 422);
  EXPECT_EQ(again.refusal->error.code, "idempotency_conflict");
  JobRequest of_other = job;
  of_other.owner = "bob";
  EXPECT_FALSE(submit(of_other).is_attached);
  finish(id);
  again = submit(job);  // that the journal alone knows
  ASSERT_TRUE(again.view);
  EXPECT_EQ(again.view->id, id);
  EXPECT_EQ(again.view->state, JobState::kSucceeded);
  EXPECT_EQ(submit(another).refusal->error.status, 422);
  start();
  EXPECT_EQ(submit(job).view->id, id);
  EXPECT_EQ(list({}).size(), 1);
}

TEST_F(ServiceTest, AResendGetsTheJobOfTheSameBody) {
  start();
  add_world();
  JobRequest job = request();
  job.body_hash = "body";
  const std::string id = accept(job), second = accept(job);
  EXPECT_NE(id, second);
  job.is_resend = true;
  const Answer again = submit(job);
  EXPECT_TRUE(again.is_attached);
  EXPECT_EQ(again.view->id, second);
  job.body_hash = "another";
  EXPECT_FALSE(submit(job).is_attached);
}

TEST_F(ServiceTest, LimitsAreKeptBeforeAnyWork) {
  options_.limits.pixels = 32 * 32;
  options_.limits.steps = 10;
  options_.limits.pictures = 3;
  options_.limits.prompt_bytes = 100;
  start();
  FakeWorld& world = add_world();
  const auto refused = [&](const std::string& parameter, const auto& change) {
    JobRequest job = request();
    change(job);
    const Answer answer = submit(job);
    ASSERT_TRUE(answer.refusal) << parameter;
    EXPECT_EQ(answer.refusal->error.status, 400);
    EXPECT_EQ(answer.refusal->parameter, parameter);
    EXPECT_NE(answer.refusal->error.message.find(parameter), std::string::npos)
        << answer.refusal->error.message;
  };
  refused("width", [](JobRequest& job) { job.request.width = 1024; });
  refused("num_inference_steps", [](JobRequest& job) { job.request.num_inference_steps = 11; });
  refused("num_images_per_prompt", [](JobRequest& job) { job.request.num_images_per_prompt = 4; });
  refused("prompt", [](JobRequest& job) { job.request.prompts = {"a", "b", "c", "d"}; });
  refused("prompt", [](JobRequest& job) { job.request.prompts = {std::string(101, 'x')}; });
  refused("prompt", [](JobRequest& job) {
    job.request.prompts = {"a", "b"};
    job.request.num_images_per_prompt = 2;
  });
  refused("format", [](JobRequest& job) { job.suffix = ".mp4"; });
  refused("dtype", [](JobRequest& job) { job.request.dtype = at::kBFloat16; });
  refused("output_type", [](JobRequest& job) { job.request.output_type = engine::OutputType::kLatent; });
  refused("image", [](JobRequest& job) { job.request.images = {"/etc/passwd"}; });
  refused("reference", [](JobRequest& job) { job.request.video.reference_paths = {"/etc/passwd"}; });
  refused("scheduler", [](JobRequest& job) { job.request.scheduler = "nothing"; });
  EXPECT_EQ(service_->status().queued + service_->status().running, 0);
  world.take_orders();
  EXPECT_EQ(count_orders(world, WorldOrder::Kind::kBegin), 0);
}

TEST_F(ServiceTest, WhatCannotHaveItsMemoryIsRefused) {
  options_.memory = {{.name = "this machine", .most = uint64_t{32} << 20}};
  start();
  JobRequest job = request();
  job.request.height = job.request.width = 1024;
  for (int i = 0; i < 2; ++i) {  // the second time without another look
    const auto answer = begin_submit(job);
    EXPECT_EQ(answer->calls, i);
    wait_for([&] { return answer->calls > 0; });
    ASSERT_TRUE(answer->refusal);
    EXPECT_EQ(answer->refusal->error.code, "out_of_memory");
    EXPECT_EQ(answer->refusal->error.status, 400);
    const std::string& message = answer->refusal->error.message;
    EXPECT_TRUE(message.starts_with("the run needs about ")) << message;
    EXPECT_NE(message.find("but this machine has 32.0 MiB; try a smaller size"), std::string::npos)
        << message;
  }
  accept(request());
  EXPECT_EQ(service_->status().queued, 1);
}

TEST_F(ServiceTest, OtherWorldsHoldMemoryToo) {
  constexpr uint64_t kMemory = uint64_t{512} << 20;
  options_.memory = {{.name = "this machine", .most = kMemory}};
  options_.worlds = 3;
  start();
  JobRequest job = request();
  job.request.height = job.request.width = 1024;
  EXPECT_TRUE(submit(job).view);
  FakeWorld& world = add_world(0, /*is_ready=*/false);
  world.tell({.kind = WorldEvent::Kind::kReady, .ranks = 2, .weights_bytes = kMemory / 4});
  service_->read_world(0);
  const Answer answer = submit(job);
  ASSERT_TRUE(answer.refusal);
  EXPECT_EQ(answer.refusal->error.code, "out_of_memory");
  const std::string& message = answer.refusal->error.message;
  EXPECT_NE(message.find("but this machine, beside the 512.0 MiB that other worlds hold, has 0.0 KiB"),
            std::string::npos)
      << message;
}

TEST_F(ServiceTest, FilesOfARefusedRequestAreRemoved) {
  start();
  JobRequest job = request();
  job.images = {"the bytes of a picture"};  // which this model does not take
  const Answer answer = submit(job);
  ASSERT_TRUE(answer.refusal);
  EXPECT_EQ(answer.refusal->parameter, "image");
  const std::filesystem::path uploads = folder_ / "journal" / "uploads";
  EXPECT_TRUE(std::filesystem::exists(uploads));
  wait_for([&] { return std::filesystem::is_empty(uploads); });
}

TEST_F(ServiceTest, WhoWaitsHearsWhenHisPlaceChanges) {
  start();
  add_world();
  accept(request(1));
  accept(request(2));
  const std::string last = accept(request(3));
  std::vector<int64_t> ahead;
  const auto follower = service_->follow("ann", last, 0, [&](const JobUpdate& update) {
    if (update.job.outlook) ahead.push_back(update.job.outlook->jobs_ahead);
  });
  step(10);
  EXPECT_EQ(ahead, (std::vector<int64_t>{1, 0}));
}

TEST_F(ServiceTest, ManyWhoWaitHearInTurnsAndHoldUpNobody) {
  start();
  const std::string first = accept(request(1));
  std::vector<std::string> ids;
  for (uint64_t i = 2; i < 6; ++i) ids.push_back(accept(request(i)));
  size_t told = 0;
  std::vector<std::shared_ptr<Follower>> followers;
  for (const std::string& id : ids) {
    for (int i = 0; i < 60; ++i)
      followers.push_back(service_->follow("ann", id, 0, [&](const JobUpdate&) { ++told; }));
  }
  service_->cancel("ann", first, [](const std::optional<JobView>&) {});
  told = 0;
  for (size_t i = 1; i <= ids.size(); ++i) {
    pass(0.1);
    EXPECT_EQ(told, 60 * i);
  }
  pass(0.1);
  pass(0.1);
  EXPECT_EQ(told, 240);
}

TEST_F(ServiceTest, AFullQueueSaysWhenToComeAgain) {
  options_.scheduler.max_jobs = 2;
  start();
  accept(request(1));
  accept(request(2));
  const Answer answer = submit(request(3));
  ASSERT_TRUE(answer.refusal);
  EXPECT_EQ(answer.refusal->error.status, 429);
  EXPECT_EQ(answer.refusal->error.code, "queue_full");
  EXPECT_TRUE(answer.refusal->retry_after);
}

TEST_F(ServiceTest, NobodySeesTheJobsOfOthers) {
  start();
  add_world();
  const std::string id = accept(request());
  EXPECT_FALSE(find(id, "bob"));
  EXPECT_TRUE(list({}, "bob").empty());
  EXPECT_TRUE(service_->unfinished("bob").empty());
  EXPECT_EQ(service_->follow("bob", id, 0, [](const JobUpdate&) { FAIL(); }), nullptr);
  EXPECT_EQ(service_->preview("bob", id), nullptr);
  service_->cancel("bob", id, [](const std::optional<JobView>& view) { EXPECT_FALSE(view); });
  std::optional<bool> was_there;
  service_->remove("bob", id, [&](bool found) { was_there = found; });
  wait_for([&] { return was_there.has_value(); });
  EXPECT_FALSE(*was_there);
  EXPECT_EQ(finish(id).state, JobState::kSucceeded);
  EXPECT_FALSE(find(id, "bob"));
  EXPECT_FALSE(find("../../etc/passwd"));
}

TEST_F(ServiceTest, JobsAreCancelledWhileTheyWaitAndWhileTheyRun) {
  start();
  FakeWorld& world = add_world();
  const std::string running = accept(request(1)), waiting = accept(request(2)), last = accept(request(3));
  step();
  for (const std::string& id : {waiting, running}) {
    std::optional<JobState> state;
    service_->cancel("ann", id, [&](const std::optional<JobView>& view) { state = view->state; });
    EXPECT_EQ(state, JobState::kCancelled);
  }
  world.take_orders();
  EXPECT_EQ(count_orders(world, WorldOrder::Kind::kDrop), 1);
  EXPECT_EQ(finish(last).state, JobState::kSucceeded);
  EXPECT_EQ(find(waiting)->error->code, "cancelled");
  std::optional<bool> was_there;
  service_->remove("ann", last, [&](bool found) { was_there = found; });
  wait_for([&] { return was_there.has_value(); });
  EXPECT_TRUE(*was_there);
  EXPECT_FALSE(find(last));
}

TEST_F(ServiceTest, AJobEndsAWhileAfterTheClientThatAwaitsItHasGone) {
  start();
  add_world();
  JobRequest job = request(1, 50);
  job.is_awaited = true;
  const std::string id = accept(job);
  auto follower = service_->follow("ann", id, 0, [](const JobUpdate&) {});
  step(8);
  EXPECT_EQ(state(id), JobState::kRunning);
  follower.reset();
  step(3);
  EXPECT_EQ(state(id), JobState::kRunning);
  follower = service_->follow("ann", id, 0, [](const JobUpdate&) {});  // it has come again
  step(8);
  EXPECT_EQ(state(id), JobState::kRunning);
  follower.reset();
  step(7);
  EXPECT_EQ(state(id), JobState::kCancelled);
}

TEST_F(ServiceTest, AFollowerMayGoAndCancelInItsCall) {
  start();
  add_world();
  const std::string id = accept(request());
  std::shared_ptr<Follower> follower;
  int calls = 0;
  follower = service_->follow("ann", id, 0, [&](const JobUpdate& update) {
    ++calls;
    if (update.kind != JobUpdate::Kind::kStep) return;
    service_->cancel(
        "ann", id, [](const std::optional<JobView>& view) { EXPECT_EQ(view->state, JobState::kCancelled); });
    follower.reset();
  });
  const auto other = service_->follow("ann", id, 0, [](const JobUpdate& update) {
    EXPECT_TRUE(!has_ended(update.job.state) || update.kind == JobUpdate::Kind::kState);
  });
  step(3);
  EXPECT_EQ(state(id), JobState::kCancelled);
  EXPECT_EQ(calls, 3);  // as it was, the step, and that it is cancelled
}

TEST_F(ServiceTest, JobsExpire) {
  start();
  JobRequest job = request(1, 40);
  job.timeout = Seconds(5);
  const std::string waits = accept(job);
  pass(4);
  EXPECT_EQ(state(waits), JobState::kQueued);
  pass(2);
  EXPECT_EQ(state(waits), JobState::kExpired);
  FakeWorld& world = add_world();
  const std::string runs = accept(job);
  step(3);
  EXPECT_EQ(state(runs), JobState::kRunning);
  step(4);
  EXPECT_EQ(state(runs), JobState::kExpired);
  EXPECT_EQ(find(runs)->error->code, "expired");
  world.take_orders();
  EXPECT_TRUE(world.runs.empty());
}

TEST_F(ServiceTest, ErrorsOfARunAreThoseOfItsJob) {
  start();
  FakeWorld& world = add_world();
  const auto error = [&](ErrorKind kind) {
    const std::string id = accept(request());
    step();
    world.fail(kind, Error(kind, field("height"), "is wrong").message());
    service_->read_world(0);
    const auto view = find(id);
    EXPECT_EQ(view->state, JobState::kFailed);
    return view->error.value_or(JobError());
  };
  EXPECT_EQ(error(ErrorKind::kUsage).status, 400);
  EXPECT_EQ(error(ErrorKind::kMemory).status, 503);
  EXPECT_EQ(error(ErrorKind::kMemory).code, "out_of_memory");
  EXPECT_EQ(error(ErrorKind::kInput).status, 500);
  EXPECT_EQ(error(ErrorKind::kInput).message.find("height"), std::string::npos);
}

TEST_F(ServiceTest, PreviewsAreMadeForThoseWhoWatch) {
  start();
  FakeWorld& world = add_world();
  const std::string id = accept(request(1, 20));
  step(2);
  EXPECT_EQ(world.runs.begin()->second.preview_every, 0);
  std::string preview;
  auto follower = service_->follow("ann", id, 2, [&](const JobUpdate& update) {
    if (update.kind == JobUpdate::Kind::kPreview) preview = *update.bytes;
  });
  step(3);
  EXPECT_EQ(world.runs.begin()->second.preview_every, 2);
  wait_for([&] { return !preview.empty(); });
  EXPECT_TRUE(preview.starts_with("\xff\xd8"));
  EXPECT_EQ(*service_->preview("ann", id), preview);
  follower.reset();
  step(2);
  EXPECT_EQ(world.runs.begin()->second.preview_every, 1);  // for who has asked
  step(12);
  EXPECT_TRUE(world.runs.empty() || world.runs.begin()->second.preview_every == 0);
}

TEST_F(ServiceTest, AJobKeepsItsWarnings) {
  start();
  JobRequest job = request();
  job.request.guidance_scale = 1;
  job.request.negative_prompts = {"red"};
  const std::string id = accept(job);
  const std::vector<std::string> warnings = find(id)->warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("negative_prompt has no effect: guidance_scale is 1"), std::string::npos)
      << warnings[0];
  start();  // the request as it is stored has no negative prompt
  EXPECT_EQ(find(id)->warnings, warnings);
  add_world();
  world().take_orders();
  const int64_t run = world().runs.begin()->first;
  for (int i = 0; i < 2; ++i)
    world().tell({.kind = WorldEvent::Kind::kWarning, .run = run, .message = "[tokenizer] cut"});
  service_->read_world(0);
  ASSERT_EQ(find(id)->warnings.size(), 2U);
  EXPECT_EQ(find(id)->warnings[1], "[tokenizer] cut");
  EXPECT_EQ(finish(id).warnings.size(), 2U);
  EXPECT_TRUE(find(accept(request(2)))->warnings.empty());
}

TEST_F(ServiceTest, TimesOfAJobAscendAndStayTheSame) {
  start();
  add_world();
  const auto answer = begin_submit(request());
  wall_ahead_ = std::chrono::minutes(1);  // before the disk has it
  wait_for([&] { return answer->calls > 0; });
  const JobView first = *answer->view;
  wall_ahead_ = std::chrono::hours(-1);  // the clock is set back
  step(2);
  const std::string id = first.id;
  JobView last;
  const auto follower = service_->follow("ann", id, 0, [&](const JobUpdate& update) { last = update.job; });
  const JobView stored = finish(id);
  EXPECT_EQ(last.state, JobState::kSucceeded);
  EXPECT_EQ(stored.accepted, first.accepted);
  EXPECT_EQ(stored.started, first.started);
  EXPECT_LE(first.accepted, first.started);
  EXPECT_LE(last.started, last.ended);
}

TEST_F(ServiceTest, ListsJobsInTheirOrder) {
  start();
  add_world();
  std::vector<std::string> ids;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    time_ += Seconds(1);
    ids.push_back(accept(request(seed)));
  }
  finish(ids[1]);
  const auto names = [](const std::vector<JobView>& views) {
    std::vector<std::string> result;
    for (const JobView& each : views) result.push_back(each.id);
    return result;
  };
  EXPECT_EQ(names(list({})), ids);
  EXPECT_EQ(names(list({.after = ids[0], .limit = 2})), (std::vector{ids[1], ids[2]}));
  EXPECT_EQ(names(list({.limit = 2, .newest_first = true})), (std::vector{ids[4], ids[3]}));
  EXPECT_EQ(names(list({.states = {JobState::kSucceeded}})), (std::vector{ids[0], ids[1]}));
  EXPECT_EQ(names(list({.states = {JobState::kQueued}, .limit = 1})), std::vector{ids[3]});
  EXPECT_TRUE(list({.api = "images"}).empty());
}

}  // namespace
}  // namespace tessera::serve
