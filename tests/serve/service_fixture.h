// A service whose worlds, clock and server's thread are the test's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "serve/service.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::serve {

// A world that computes a number in place of latents: what a step makes of it depends on all steps before, so
// that a run that goes on from elsewhere than where it stood gives another picture.
class FakeWorld {
 public:
  using Kind = WorldOrder::Kind;
  using What = WorldEvent::Kind;

  // The front's end. A world has one at a time.
  std::unique_ptr<WorldLink> link();

  // Takes the orders that have come, as between two steps.
  void take_orders() {
    while (!orders.empty()) {
      const WorldOrder order = std::move(orders.front());
      orders.pop_front();
      log.push_back(order);
      obey(order);
    }
  }
  // A step of every run. Whether there was one.
  bool step() {
    take_orders();
    if (runs.empty() || is_stuck) return false;
    for (auto at = runs.begin(); at != runs.end();) {
      Run& run = at->second;
      if (run.step < run.steps) {
        for (uint64_t& each : run.states) each = each * 6364136223846793005 + static_cast<uint64_t>(run.step);
        ++run.step;
        tell({.kind = What::kStep, .run = at->first, .step = run.step, .steps = run.steps});
        if (run.preview_every > 0 && run.step % run.preview_every == 0)
          tell(
              {.kind = What::kPreview, .run = at->first, .step = run.step, .image = picture(8, 8, run.step)});
        ++at;
        continue;
      }
      for (size_t i = 0; i < run.states.size(); ++i)
        tell({.kind = What::kPicture,
              .run = at->first,
              .index = static_cast<int64_t>(i),
              .image = picture(run.height, run.width, run.states[i])});
      tell({.kind = What::kEnded, .run = at->first, .seconds = seconds});
      at = runs.erase(at);
    }
    return true;
  }
  void ready() { tell({.kind = What::kReady, .ranks = 1, .weights_bytes = 1000}); }
  void alive() { tell({.kind = What::kAlive}); }
  void fail(ErrorKind kind, const std::string& message) {
    for (const auto& [id, run] : runs)
      tell({.kind = What::kFailed, .run = id, .exit_code = static_cast<int>(kind), .message = message});
    runs.clear();
  }
  void die() { is_dead = true; }
  void tell(WorldEvent event) { events.push_back(std::move(event)); }

  static Image picture(int64_t height, int64_t width, uint64_t state) {
    Image image{.height = height, .width = width, .pixels = {}};
    for (int64_t i = 0; i < height * width * 3; ++i)
      image.pixels.push_back(static_cast<uint8_t>((state >> (i % 8 * 8)) + static_cast<uint64_t>(i)));
    return image;
  }
  // What a request of these comes to, alone and without an interruption.
  static Image expected(const engine::Request& request, uint64_t picture_number = 0) {
    uint64_t state = first_state(*request.seed, request.prompts.front(), picture_number);
    for (int64_t i = 0; i < *request.num_inference_steps; ++i)
      state = state * 6364136223846793005 + static_cast<uint64_t>(i);
    return picture(*request.height, *request.width, state);
  }

  std::deque<WorldOrder> orders;
  std::vector<WorldOrder> log;  // that were taken
  std::deque<WorldEvent> events;
  bool is_dead = false, is_stuck = false;
  // Of which 5 s are for telling pictures.
  engine::Seconds seconds = {.load = 1, .encode = 2, .denoise = 30, .decode = 4, .write = 5, .total = 43};
  int64_t group = 100;  // pictures that it denoises together; those of several groups are not as expected
  struct Run {
    std::vector<uint64_t> states = {};  // by picture
    int64_t step = 0, steps = 0, height = 0, width = 0, preview_every = 0;
  };
  std::map<int64_t, Run> runs;

 private:
  static uint64_t first_state(uint64_t seed, const std::string& prompt, uint64_t picture_number) {
    return seed * 1000003 + std::hash<std::string>()(prompt) + picture_number * 77;
  }
  void obey(const WorldOrder& order) {
    if (order.kind == Kind::kDropAll) return runs.clear();
    if (order.kind == Kind::kBegin || order.kind == Kind::kResume) return begin(order);
    if (order.kind == Kind::kDrop) {
      runs.erase(order.run);
      return tell({.kind = What::kDropped, .run = order.run});
    }
    const auto found = runs.find(order.run);
    if (found == runs.end()) return;
    if (order.kind == Kind::kWatch) found->second.preview_every = order.preview_every;
    if (order.kind == Kind::kSave) {
      Json saved = {{"step", found->second.step}, {"states", found->second.states}};
      tell({.kind = What::kSaved, .run = order.run, .step = found->second.step, .saved = saved.dump()});
    }
  }
  void begin(const WorldOrder& order) {
    tell({.kind = What::kBegun, .run = order.run});
    Run& run = runs[order.run];
    for (const std::string& text : order.requests) {
      const engine::Request request = read_fields(engine::request_fields(), parse_json(text, "request"));
      for (int64_t i = 0; i < request.num_images_per_prompt; ++i)
        run.states.push_back(first_state(*request.seed, request.prompts.front(), static_cast<uint64_t>(i)));
      run.steps = *request.num_inference_steps;
      run.height = *request.height;
      run.width = *request.width;
    }
    run.steps *= (std::ssize(run.states) + group - 1) / group;
    run.preview_every = order.preview_every;
    if (order.kind == Kind::kResume) {
      const Json saved = parse_json(order.saved, "saved");
      run.step = saved.at("step").get<int64_t>();
      run.states = saved.at("states").get<std::vector<uint64_t>>();
    }
    tell({.kind = What::kStep, .run = order.run, .step = run.step, .steps = run.steps});
  }
};

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline int64_t count_orders(const FakeWorld& world, WorldOrder::Kind kind) {
  return std::ranges::count_if(world.log, [&](const WorldOrder& each) { return each.kind == kind; });
}

class FakeLink final : public WorldLink {
 public:
  explicit FakeLink(FakeWorld& world) : world_(world) {}
  void send(const WorldOrder& order) override {
    check();
    world_.orders.push_back(order);
  }
  void flush() override { check(); }
  std::optional<WorldEvent> read() override {
    if (world_.events.empty()) check();
    if (world_.events.empty()) return std::nullopt;
    WorldEvent event = std::move(world_.events.front());
    world_.events.pop_front();
    return event;
  }

 private:
  void check() const {
    if (world_.is_dead) throw Error(ErrorKind::kPeer, "frames", "the other process has gone");
  }
  FakeWorld& world_;
};

inline std::unique_ptr<WorldLink> FakeWorld::link() {
  return std::make_unique<FakeLink>(*this);
}

class ServiceTest : public FolderFixture {
 protected:
  void TearDown() override { service_.reset(); }

  job::Job base() const {
    job::Job job;
    job.model = engine::tiny();
    if (!folder_of_weights_.empty()) job.model.folder = folder_of_weights_;
    job.arguments.request.dtype = at::kFloat;
    return job;
  }
  // A process that starts on the folder that the one before left.
  void start() {
    service_.reset();
    worlds_.clear();
    {
      const std::lock_guard lock(mutex_);
      posted_.clear();
    }
    options_.base = base();
    options_.model_name = "tiny";
    options_.journal.folder = folder_ / "journal";
    options_.scheduler.first_run = ++starts_ * 1'000'000;
    metrics_ = std::make_unique<Metrics>();
    service_ = std::make_unique<Service>(
        options_,
        ServiceHooks{.post = [this](std::function<void()> call) { post(std::move(call)); },
                     .clock = [this] { return time_; },
                     .wall_clock = [this] { return wall(); },
                     .replace = [this](WorldId id, const std::string&) { replaced_.push_back(id); }},
        *metrics_);
  }
  WallTime wall() const {
    return WallTime(std::chrono::milliseconds(1'790'000'000'000)) + wall_ahead_.load() +
           std::chrono::duration_cast<std::chrono::milliseconds>(time_);
  }
  FakeWorld& add_world(WorldId id = 0, bool is_ready = true) {
    FakeWorld& world = *(worlds_[id] = std::make_unique<FakeWorld>());
    service_->add_world(id, world.link());
    if (is_ready) world.ready();
    service_->read_world(id);
    return world;
  }
  FakeWorld& world(WorldId id = 0) { return *worlds_.at(id); }

  // The server's thread.
  void post(std::function<void()> call) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(call));
    }
    changed_.notify_one();
  }
  void run_posted() {
    std::deque<std::function<void()>> calls;
    {
      const std::lock_guard lock(mutex_);
      calls.swap(posted_);
    }
    for (auto& call : calls) call();
  }
  // Until it is true; other threads take their time.
  void wait_for(const std::function<bool()>& is_true) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_true()) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit) << "it hangs";
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return !posted_.empty(); });
      }
      run_posted();
    }
  }
  // So many steps of a world, of a second each.
  void step(int64_t count = 1, WorldId id = 0) {
    for (int64_t i = 0; i < count; ++i) {
      time_ += Seconds(1);
      world(id).step();
      service_->read_world(id);
      service_->tick();
      world(id).take_orders();
      service_->read_world(id);
      run_posted();
    }
  }
  void pass(double seconds) {
    time_ += Seconds(seconds);
    service_->tick();
  }

  static JobRequest request(uint64_t seed = 1, int64_t steps = 4) {
    JobRequest job{.owner = "ann", .api = "jobs"};
    job.request = engine::tiny_request(16, 32, seed);
    job.request.num_inference_steps = steps;
    return job;
  }
  // What submit() calls back with.
  struct Answer {
    std::optional<JobView> view = {};
    std::optional<JobRefusal> refusal = {};
    bool is_attached = false;
    int calls = 0;
  };
  std::shared_ptr<Answer> begin_submit(const JobRequest& job) {
    auto answer = std::make_shared<Answer>();
    service_->submit(job, [answer](std::variant<JobView, JobRefusal> result, bool is_attached) {
      ++answer->calls;
      answer->is_attached = is_attached;
      if (auto* view = std::get_if<JobView>(&result)) answer->view = std::move(*view);
      if (auto* refusal = std::get_if<JobRefusal>(&result)) answer->refusal = std::move(*refusal);
    });
    return answer;
  }
  Answer submit(const JobRequest& job) {
    const auto answer = begin_submit(job);
    wait_for([&] { return answer->calls > 0; });
    return *answer;
  }
  std::string accept(const JobRequest& job) {
    const Answer answer = submit(job);
    EXPECT_TRUE(answer.view) << (answer.refusal ? answer.refusal->error.message : "");
    return answer.view ? answer.view->id : "";
  }
  std::optional<JobView> find(const std::string& id, const std::string& owner = "ann") {
    std::optional<std::optional<JobView>> found;
    service_->find(owner, id, [&](std::optional<JobView> view) { found = std::move(view); });
    wait_for([&] { return found.has_value(); });
    return *found;
  }
  JobState state(const std::string& id) {
    const auto view = find(id);
    EXPECT_TRUE(view) << id;
    return view ? view->state : JobState::kFailed;
  }
  bool is_encoding(const std::string& id) {
    return std::ranges::any_of(service_->unfinished("ann"), [&](const JobView& each) {
      return each.id == id && each.state == JobState::kEncoding;
    });
  }
  // Steps until the job has ended.
  JobView finish(const std::string& id, WorldId on = 0) {
    for (int i = 0; i < 200; ++i) {
      const auto view = find(id);
      if (!view || has_ended(view->state)) return view.value_or(JobView());
      if (view->state == JobState::kEncoding) {
        wait_for([&] { return !is_encoding(id); });
      } else {
        step(1, on);
      }
    }
    ADD_FAILURE() << "job " << id << " does not end";
    return {};
  }
  std::vector<JobView> list(const JobFilter& filter, const std::string& owner = "ann") {
    std::optional<std::vector<JobView>> found;
    service_->list(owner, filter, [&](std::vector<JobView> views) { found = std::move(views); });
    wait_for([&] { return found.has_value(); });
    return *found;
  }
  // The file that `tessera generate` writes for the picture.
  std::string expected_file(const JobView& view, int64_t index = 0, const std::string& suffix = ".png") {
    const engine::Settings settings = engine::resolve(view.request.request, engine::tiny());
    const Image image = FakeWorld::expected(view.request.request, static_cast<uint64_t>(index));
    EXPECT_EQ(suffix, ".png");
    return encode_png(image, Encoder::text_of(base(), settings, index));
  }

  std::filesystem::path folder_of_weights_;
  ServiceOptions options_ = {.base = {}, .model_name = {}, .journal = {}};
  Seconds time_{1000};
  std::atomic<std::chrono::milliseconds> wall_ahead_{std::chrono::milliseconds(0)};
  int64_t starts_ = 0;
  std::vector<WorldId> replaced_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  std::map<WorldId, std::unique_ptr<FakeWorld>> worlds_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Service> service_;
};

}  // namespace tessera::serve
