#include "serve/world.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <new>
#include <set>
#include <thread>

#include "core/error.h"
#include "tests/serve/world_fixture.h"
#include "tests/support/resident_memory.h"

namespace tessera::serve {
namespace {

using engine::tiny;
using Kind = WorldOrder::Kind;
using What = WorldEvent::Kind;

// The picture of each seed, alone in the layout of a case.
std::map<uint64_t, Image> lone_pictures(const WorldCase& of, const std::vector<uint64_t>& seeds) {
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
  const WorldCase of = world_cases()[GetParam()];
  auto lone = lone_pictures(of, {1, 2, 3, 4});
  const Script script = run_script(of, {{2, {begin_order(10, {request_of(1)})}},
                                        {4, {begin_order(11, {request_of(2), request_of(3)})}},
                                        {5, {begin_order(12, {request_of(4)})}},
                                        {6, {plain_order(Kind::kDrop, 12)}}});
  EXPECT_EQ(script.failures, (std::map<int64_t, std::string>()));
  EXPECT_EQ(script.pictures.at(10), std::vector{lone[1]});
  EXPECT_EQ(script.pictures.at(11), (std::vector{lone[2], lone[3]}));
  EXPECT_EQ(script.count(What::kEnded, 12), 0);
  EXPECT_EQ(script.count(What::kDropped, 12), 1);
  EXPECT_EQ(script.count(What::kPicture, 12), 0);
  EXPECT_EQ(script.count(What::kBegun, 10), 1);
  EXPECT_EQ(script.count(What::kEnded, 10), 1);
  EXPECT_EQ(script.count(What::kStep, 10), 6);          // from 0 to 5
  EXPECT_EQ(script.waited, (std::set<int64_t>{0, 1}));  // only without runs
}

TEST_P(WorldOfRanks, GoesOnInAnotherWorldFromWhereItWasSaved) {
  const WorldCase of = world_cases()[GetParam()];
  auto lone = lone_pictures(of, {5, 6});
  const Script first = run_script(of, {{0, {begin_order(1, {request_of(5), request_of(6)})}},
                                       {3, {plain_order(Kind::kSave, 1), plain_order(Kind::kDrop, 1)}}});
  WorldOrder resume = begin_order(7, {request_of(5), request_of(6)});
  resume.kind = Kind::kResume;
  resume.saved = first.saved.at(1);
  for (const WorldCase& other : {of, world_cases()[0]}) {
    const Script second = run_script(other, {{0, {resume}}});
    EXPECT_EQ(second.failures, (std::map<int64_t, std::string>()));
    EXPECT_LT(second.count(What::kStep, 7), 6);  // not from the beginning
    ASSERT_EQ(second.pictures.at(7).size(), 2U);
    if (other.name != of.name) continue;
    EXPECT_EQ(second.pictures.at(7), (std::vector{lone[5], lone[6]}));
  }
}

TEST_P(WorldOfRanks, OrdersThatAreWrongFailAlone) {
  const WorldCase of = world_cases()[GetParam()];
  auto lone = lone_pictures(of, {1});
  engine::Request other = request_of(2), no_seed = request_of(3), impossible = request_of(4);
  other.height = 64;
  no_seed.seed.reset();
  impossible.scheduler = "no such";
  WorldOrder damaged = begin_order(5, {request_of(5)}), no_json = begin_order(6, {});
  damaged.kind = Kind::kResume;
  damaged.saved = "damaged";
  no_json.requests = {"{"};
  const Script script =
      run_script(of, {{0, {begin_order(1, {request_of(1)})}},
                      {1,
                       {begin_order(2, {other}), begin_order(3, {no_seed}), begin_order(4, {impossible}),
                        damaged, no_json, begin_order(7, {})}},
                      {2, {plain_order(Kind::kSave, 99), plain_order(Kind::kDrop, 98)}}});
  EXPECT_EQ(script.count(What::kDropped, 98), 1);  // a run that has ended
  EXPECT_EQ(script.pictures.at(1), std::vector{lone[1]});
  for (const int64_t run : {2, 3, 4, 5, 6, 7}) EXPECT_TRUE(script.failures.contains(run)) << run;
  EXPECT_EQ(script.failures.size(), 6U);
}

// Orders of one turn see what those before them do: what begins can be dropped or watched, and a run of
// another shape can follow those that are dropped.
TEST_P(WorldOfRanks, TakesOrdersOfATurnOneAfterTheOther) {
  const WorldCase of = world_cases()[GetParam()];
  engine::Request other = request_of(2);
  other.height = 64;
  const Script script = run_script(of, {{0,
                                         {begin_order(1, {request_of(1)}), plain_order(Kind::kDrop, 1),
                                          begin_order(2, {request_of(1)}), begin_order(6, {request_of(2)})}},
                                        {3,
                                         {plain_order(Kind::kDropAll), begin_order(3, {other}),
                                          begin_order(4, {request_of(1)}), begin_order(5, {other})}}});
  EXPECT_FALSE(script.pictures.contains(1));
  EXPECT_EQ(script.count(What::kDropped, 1), 1);
  EXPECT_FALSE(script.pictures.contains(2) || script.pictures.contains(6));
  EXPECT_EQ(script.failures.size(), 1U);
  EXPECT_TRUE(script.failures.contains(4));
  ASSERT_TRUE(script.pictures.contains(3) && script.pictures.contains(5));
  EXPECT_EQ(script.pictures.at(3), script.pictures.at(5));
  EXPECT_EQ(script.pictures.at(3).at(0).height, 64);
}

TEST(WorldOfOneRank, SaysWhenItIsReady) {
  const Script script = run_script(world_cases()[0], {});
  ASSERT_EQ(script.events.size(), 1U);
  EXPECT_EQ(script.events[0].kind, What::kReady);
  EXPECT_EQ(script.events[0].ranks, 1);
}

TEST(WorldOfOneRank, TellsANewFrontThatItIsReady) {
  const Script script = run_script(
      world_cases()[0], {{0, {begin_order(1, {request_of(1)})}}, {2, {plain_order(Kind::kDropAll)}}});
  ASSERT_FALSE(script.events.empty());
  EXPECT_EQ(script.events.back().kind, What::kReady);
  EXPECT_EQ(script.events.back().ranks, 1);
  EXPECT_GT(script.events.back().weights_bytes, 0U);
}

TEST(WorldOfOneRank, TellsWhatARunWarnsOf) {
  class Warning final : public WorldPort {
   public:
    std::vector<WorldOrder> orders(std::chrono::milliseconds /*wait*/) override {
      ++turn;
      if (turn == 1) return {begin_order(7, {request_of(1)})};
      return turn == 4 ? std::vector{plain_order(Kind::kEnd)} : std::vector<WorldOrder>();
    }
    void tell(const WorldEvent& event) override {
      if (event.kind == What::kWarning) told.emplace_back(event.run, event.message);
    }
    std::vector<std::string> take_warnings() override { return {"of turn " + std::to_string(turn)}; }
    int turn = 0;
    std::vector<std::pair<int64_t, std::string>> told;
  } port;
  engine::Engine engine(tiny(), engine::kNoLimit);
  run_world(engine, {}, {}, &port, std::chrono::milliseconds(1));
  const std::vector<std::pair<int64_t, std::string>> expected = {
      {7, "of turn 1"}, {7, "of turn 2"}, {7, "of turn 3"}};
  EXPECT_EQ(port.told, expected);
}

TEST(WorldOfOneRank, EndsAStepBetweenTwoBlocksIfItsRunIsDropped) {
  class Dropping final : public WorldPort {
   public:
    std::vector<WorldOrder> orders(std::chrono::milliseconds /*wait*/) override {
      if (turn++ == 0) return {begin_order(1, {request_of(1)})};
      if (looks == 2) {
        looks = 3;
        return {plain_order(Kind::kDrop, 1), begin_order(2, {request_of(2)})};
      }
      return is_over ? std::vector{plain_order(Kind::kEnd)} : std::vector<WorldOrder>();
    }
    void tell(const WorldEvent& event) override {
      ++told[{event.run, event.kind}];
      if (event.kind == What::kPicture) picture = event.image;
      if (event.kind == What::kEnded || event.kind == What::kFailed) is_over = true;
    }
    bool will_drop(int64_t run) override {
      const bool is_in_third = run == 1 && told[{run, What::kStep}] == 3;
      return is_in_third && ++looks == 2;
    }
    int64_t turn = 0, looks = 0;
    bool is_over = false;
    Image picture;
    std::map<std::pair<int64_t, What>, int64_t> told;
  } port;
  engine::Engine engine(tiny(), engine::kNoLimit);
  run_world(engine, {}, {}, &port, std::chrono::milliseconds(1));
  EXPECT_EQ((port.told[{1, What::kStep}]), 3);  // from 0 to 2
  EXPECT_EQ((port.told[{1, What::kDropped}]), 1);
  EXPECT_EQ((port.told[{1, What::kFailed}]) + (port.told[{1, What::kEnded}]), 0);
  EXPECT_EQ((port.told[{2, What::kEnded}]), 1);
  EXPECT_EQ(port.picture, lone_pictures(world_cases()[0], {2})[2]);
}

TEST(WorldOfOneRank, SaysThatItLivesWhileItIsIdle) {
  class Patient final : public WorldPort {
   public:
    std::vector<WorldOrder> orders(std::chrono::milliseconds wait) override {
      if (alive == 2) return {plain_order(Kind::kEnd)};
      std::this_thread::sleep_for(wait);
      return {};
    }
    void tell(const WorldEvent& event) override { alive += event.kind == What::kAlive; }
    int alive = 0;
  } port;
  engine::Engine engine(tiny(), engine::kNoLimit);
  // An idle time that would be too long, and one that is short.
  run_world(engine, {}, {}, &port, std::chrono::hours(1));
  EXPECT_EQ(port.alive, 2);
}

thread_local int failures_left = 0;

// Returns the tiny model, whose denoiser finds no memory so many times on this rank.
const engine::Model& short_of_memory() {
  static const models::Family family = [] {
    models::Family failing = *tiny().family;
    failing.load_denoiser = [](const std::filesystem::path& folder, const models::LoadOptions& options,
                               models::LoadStatistics& cost) {
      if (!options.placement.device.is_meta() && failures_left-- > 0) throw std::bad_alloc();
      return tiny().family->load_denoiser(folder, options, cost);
    };
    return failing;
  }();
  static const engine::Model model = [] {
    engine::Model with_failures = tiny();
    with_failures.family = &family;
    return with_failures;
  }();
  return model;
}

TEST_P(WorldOfRanks, GoesOnAfterARunThatFindsNoMemory) {
  const WorldCase of = world_cases()[GetParam()];
  const int64_t last = of.options.degrees() - 1;
  const Script script = run_script(
      of, {{0, {begin_order(1, {request_of(1)})}}, {2, {begin_order(2, {request_of(1)})}}},
      {.model = &short_of_memory(), .before = [&](int64_t rank) { failures_left = rank == last ? 1 : 0; }});
  EXPECT_EQ(script.failures.size(), 1U);
  ASSERT_TRUE(script.failures.contains(1));
  for (const WorldEvent& event : script.events) {
    if (event.kind != What::kFailed) continue;
    EXPECT_EQ(event.exit_code, static_cast<int>(ErrorKind::kMemory));
  }
  EXPECT_EQ(script.pictures.at(2), std::vector{lone_pictures(of, {1})[1]});
}

INSTANTIATE_TEST_SUITE_P(Cases, WorldOfRanks, ::testing::Range<size_t>(0, world_cases().size()));

// A front that has one run after the other, watches some of them and drops some.
class Steady final : public WorldPort {
 public:
  explicit Steady(int64_t runs) : runs_(runs) {}

  std::vector<WorldOrder> orders(std::chrono::milliseconds /*wait*/) override {
    if (is_running_ && run_ % 5 == 0 && step_ == 2) {
      is_running_ = false;
      return {plain_order(Kind::kDrop, run_)};
    }
    if (is_running_) return {};
    if (run_ == runs_ / 4) early = resident_megabytes();
    if (run_ == runs_) late = resident_megabytes();
    if (run_ == runs_) return {plain_order(Kind::kEnd)};
    is_running_ = true;
    engine::Request request = request_of(static_cast<uint64_t>(++run_));
    if (run_ % 7 == 0) request.scheduler = "no such";
    WorldOrder order = begin_order(run_, {request});
    order.preview_every = run_ % 2;
    return {order};
  }
  void tell(const WorldEvent& event) override {
    ++told[event.kind];
    if (event.kind == What::kStep) step_ = event.step;
    if (event.kind == What::kEnded || event.kind == What::kFailed) is_running_ = false;
  }

  double early = 0, late = 0;
  std::map<What, int64_t> told;

 private:
  const int64_t runs_;
  int64_t run_ = 0, step_ = 0;
  bool is_running_ = false;
};

// Named for what it measures, which ThreadSanitizer would distort.
class WorldMemoryOfRanks : public ::testing::TestWithParam<size_t> {};

TEST_P(WorldMemoryOfRanks, StaysTheSameOverManyRuns) {
  const WorldCase of = world_cases()[GetParam()];
  Steady front(200);
  comm::run_ranks_as_threads(
      of.options.degrees(),
      [&](const comm::World& world) {
        engine::Engine engine(tiny(), engine::kNoLimit, world);
        run_world(engine, world, of.options, world.rank() == 0 ? &front : nullptr,
                  std::chrono::milliseconds(1), std::chrono::milliseconds(0));
      },
      comm::Wire::kShared);
  EXPECT_EQ(front.told[What::kFailed], 28);
  EXPECT_EQ(front.told[What::kEnded], 200 - 28 - 35);  // every fifth is dropped, if it does not fail
  EXPECT_GT(front.told[What::kPreview], 300);
  EXPECT_LE(front.late, 1.03 * front.early);
  std::cout << "resident memory after 50 and 200 runs: " << front.early << " and " << front.late << " MB\n";
}

INSTANTIATE_TEST_SUITE_P(Cases, WorldMemoryOfRanks, ::testing::Range<size_t>(0, 2));

}  // namespace
}  // namespace tessera::serve
