#include "serve/world.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "engine/request.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::serve {
namespace {

using engine::tiny;
using Kind = WorldOrder::Kind;
using What = WorldEvent::Kind;

engine::Request request_of(uint64_t seed) {
  const std::vector<std::string> texts = {"a cat", "a red circle above a blue square", "", "a house"};
  engine::Request request = engine::tiny_request(48, 32, seed, {texts[seed % texts.size()]});
  request.num_inference_steps = 5;
  return request;
}

WorldOrder begin(int64_t run, const std::vector<engine::Request>& requests) {
  WorldOrder order{.kind = Kind::kBegin, .run = run, .requests = {}, .saved = {}};
  for (const auto& request : requests)
    order.requests.push_back(write_fields(engine::request_fields(), request).dump());
  return order;
}

// Gives the orders of a turn when it comes, and keeps what the world tells. It ends the world when there is
// no order left and no run is under way.
class Script final : public WorldPort {
 public:
  explicit Script(std::map<int64_t, std::vector<WorldOrder>> orders) : orders_(std::move(orders)) {}

  std::vector<WorldOrder> orders(std::chrono::milliseconds wait) override {
    waited.insert(wait.count());
    std::vector<WorldOrder> now;
    if (const auto found = orders_.find(turn_++); found != orders_.end()) {
      now = std::move(found->second);
      orders_.erase(found);
    }
    for (const WorldOrder& order : now) {
      if (order.kind == Kind::kBegin || order.kind == Kind::kResume) running_.insert(order.run);
      if (order.kind == Kind::kDrop) running_.erase(order.run);
    }
    if (orders_.empty() && running_.empty() && now.empty())
      now.push_back({.kind = Kind::kEnd, .requests = {}, .saved = {}});
    return now;
  }
  void tell(const WorldEvent& event) override {
    events.push_back(event);
    if (event.kind == What::kPicture) pictures[event.run].push_back(event.image);
    if (event.kind == What::kSaved) saved[event.run] = event.saved;
    if (event.kind == What::kFailed) failures[event.run] = event.message;
    if (event.kind == What::kEnded || event.kind == What::kFailed) running_.erase(event.run);
  }
  int64_t count(What kind, int64_t run) const {
    return std::count_if(events.begin(), events.end(),
                         [&](const WorldEvent& each) { return each.kind == kind && each.run == run; });
  }

  std::vector<WorldEvent> events;
  std::map<int64_t, std::vector<Image>> pictures;
  std::map<int64_t, std::string> saved, failures;
  std::set<int64_t> waited;

 private:
  std::map<int64_t, std::vector<WorldOrder>> orders_;
  std::set<int64_t> running_;
  int64_t turn_ = 0;
};

struct Case {
  std::string name;
  parallel::ParallelOptions options;
};

std::vector<Case> cases() {
  using parallel::degrees;
  return {{"alone", {}}, {"cfg", degrees(1, true, 1, 1, 1, 1)}, {"ulysses", degrees(1, false, 1, 1, 2, 1)}};
}

// Runs a world of the ranks of a case, in an engine of its own. Returns what rank 0 was told.
Script run(const Case& of, std::map<int64_t, std::vector<WorldOrder>> orders,
           std::chrono::milliseconds idle = std::chrono::milliseconds(1)) {
  Script script(std::move(orders));
  comm::run_ranks_as_threads(
      of.options.degrees(),
      [&](const comm::World& world) {
        engine::Engine engine(tiny(), engine::kNoLimit, world);
        run_world(engine, world, of.options, world.rank() == 0 ? &script : nullptr, idle);
      },
      comm::Wire::kShared);
  return script;
}

// The picture of each seed, alone in the layout of a case.
std::map<uint64_t, Image> lone_pictures(const Case& of, const std::vector<uint64_t>& seeds) {
  std::map<uint64_t, Image> pictures;
  comm::run_ranks_as_threads(
      of.options.degrees(),
      [&](const comm::World& world) {
        engine::Engine engine(tiny(), engine::kNoLimit, world);
        for (const uint64_t seed : seeds) {
          const auto settings = engine::resolve(request_of(seed), tiny());
          const auto layout =
              parallel::resolve_layout(of.options, engine::workload(settings, tiny()), std::nullopt);
          const engine::Result result = engine.run(settings, layout);
          if (world.rank() == 0) pictures[seed] = result.images.at(0);
        }
      },
      comm::Wire::kShared);
  return pictures;
}

class WorldOfRanks : public ::testing::TestWithParam<size_t> {};

TEST_P(WorldOfRanks, GivesEachRequestItsLonePictureWheneverItComes) {
  const Case of = cases()[GetParam()];
  auto lone = lone_pictures(of, {1, 2, 3, 4});
  const Script script = run(of, {{2, {begin(10, {request_of(1)})}},
                                 {4, {begin(11, {request_of(2), request_of(3)})}},
                                 {5, {begin(12, {request_of(4)})}},
                                 {6, {{.kind = Kind::kDrop, .run = 12, .requests = {}, .saved = {}}}}});
  EXPECT_EQ(script.failures, (std::map<int64_t, std::string>()));
  EXPECT_EQ(script.pictures.at(10), std::vector{lone[1]});
  EXPECT_EQ(script.pictures.at(11), (std::vector{lone[2], lone[3]}));
  EXPECT_EQ(script.count(What::kEnded, 12), 0);
  EXPECT_EQ(script.count(What::kPicture, 12), 0);
  EXPECT_EQ(script.count(What::kEnded, 10), 1);
  EXPECT_EQ(script.count(What::kStep, 10), 6);          // from 0 to 5
  EXPECT_EQ(script.waited, (std::set<int64_t>{0, 1}));  // only without runs
}

TEST_P(WorldOfRanks, GoesOnInAnotherWorldFromWhereItWasSaved) {
  const Case of = cases()[GetParam()];
  auto lone = lone_pictures(of, {5, 6});
  const Script first = run(of, {{0, {begin(1, {request_of(5), request_of(6)})}},
                                {3,
                                 {{.kind = Kind::kSave, .run = 1, .requests = {}, .saved = {}},
                                  {.kind = Kind::kDrop, .run = 1, .requests = {}, .saved = {}}}}});
  WorldOrder resume = begin(7, {request_of(5), request_of(6)});
  resume.kind = Kind::kResume;
  resume.saved = first.saved.at(1);
  for (const Case& other : {of, cases()[0]}) {
    const Script second = run(other, {{0, {resume}}});
    EXPECT_EQ(second.failures, (std::map<int64_t, std::string>()));
    EXPECT_LT(second.count(What::kStep, 7), 6);  // not from the beginning
    ASSERT_EQ(second.pictures.at(7).size(), 2U);
    if (other.name != of.name) continue;
    EXPECT_EQ(second.pictures.at(7), (std::vector{lone[5], lone[6]}));
  }
}

TEST_P(WorldOfRanks, OrdersThatAreWrongFailAlone) {
  const Case of = cases()[GetParam()];
  auto lone = lone_pictures(of, {1});
  engine::Request other = request_of(2), no_seed = request_of(3), impossible = request_of(4);
  other.height = 64;
  no_seed.seed.reset();
  impossible.scheduler = "no such";
  WorldOrder damaged = begin(5, {request_of(5)}), no_json = begin(6, {});
  damaged.kind = Kind::kResume;
  damaged.saved = "damaged";
  no_json.requests = {"{"};
  const Script script = run(
      of,
      {{0, {begin(1, {request_of(1)})}},
       {1, {begin(2, {other}), begin(3, {no_seed}), begin(4, {impossible}), damaged, no_json, begin(7, {})}},
       {2, {{.kind = Kind::kSave, .run = 99, .requests = {}, .saved = {}}}}});
  EXPECT_EQ(script.pictures.at(1), std::vector{lone[1]});
  for (const int64_t run : {2, 3, 4, 5, 6, 7}) EXPECT_TRUE(script.failures.contains(run)) << run;
  EXPECT_EQ(script.failures.size(), 6U);
}

INSTANTIATE_TEST_SUITE_P(Cases, WorldOfRanks, ::testing::Range<size_t>(0, cases().size()));

TEST(WorldOfOneRank, ShowsPreviews) {
  WorldOrder order = begin(1, {request_of(1)});
  order.preview_every = 2;
  const Script script = run(cases()[0], {{0, {order}}});
  EXPECT_EQ(script.count(What::kPreview, 1), 2);
  for (const WorldEvent& event : script.events) {
    if (event.kind != What::kPreview) continue;
    EXPECT_EQ(event.latents.sizes(), (std::vector<int64_t>{1, 4, 6, 4}));
  }
}

}  // namespace
}  // namespace tessera::serve
