// A session runs requests side by side, which begin and end between steps. What each of them gives must not
// depend on the others, nor on whether it was saved and taken up again.
#include "engine/session.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "core/error.h"
#include "samplers/sampler.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pixart.h"
#include "weights/safetensors.h"

namespace tessera::engine {
namespace {

// Requests of one shape and sampler that differ in all else.
Settings request_of(uint64_t seed, const std::optional<std::string>& scheduler = std::nullopt) {
  const std::vector<std::string> texts = {"a cat", "a red circle above a blue square", "", "a house"};
  Request request = tiny_request(48, 32, seed, {texts[seed % texts.size()]});
  request.scheduler = scheduler;
  request.num_inference_steps = 6;
  request.guidance_scale = seed % 3 == 0 ? 3.0 : 4.5;
  request.num_images_per_prompt = seed % 5 == 0 ? 2 : 1;
  return resolve(request, tiny());
}

// The layouts of two ranks in which no rank works with activations of earlier steps, and one rank.
std::vector<Way> exact_ways() {
  using parallel::degrees;
  return {{"alone", {}},
          {"cfg", degrees(1, true, 1, 1, 1, 1)},
          {"ulysses", degrees(1, false, 1, 1, 2, 1)},
          {"ring", degrees(1, false, 1, 2, 1, 1)},
          {"gather", degrees(1, false, 1, 1, 1, 1, 2)},
          {"tensor", degrees(1, false, 1, 1, 1, 2)},
          {"pipefusion of one patch", degrees(1, false, 2, 1, 1, 1)}};
}

parallel::Layout layout_of(const Way& way, const Settings& settings) {
  parallel::ParallelOptions options = way.options;
  options.num_pipeline_patch = way.name.starts_with("pipefusion") ? std::optional<int64_t>(1) : std::nullopt;
  return parallel::resolve_layout(options, workload(settings, tiny()), std::nullopt);
}

// When requests come: of each step the seeds.
std::map<int64_t, std::vector<uint64_t>> arrivals(int64_t count, int64_t steps) {
  std::mt19937 random(7);
  std::map<int64_t, std::vector<uint64_t>> seeds;
  for (int64_t i = 0; i < count; ++i)
    seeds[std::uniform_int_distribution<int64_t>(0, steps)(random)].push_back(static_cast<uint64_t>(i) + 1);
  return seeds;
}

// Runs a session in which `count` requests arrive at random steps. Returns their results by seed.
std::map<uint64_t, Result> run_session(Engine& engine, const parallel::Layout& layout, int64_t count) {
  constexpr int64_t kSteps = 15;
  const auto coming = arrivals(count, kSteps);
  Session session(engine, layout);
  std::map<uint64_t, Session::Id> ids;
  bool is_any_left = true;
  for (int64_t step = 0; step <= kSteps || is_any_left; ++step) {
    if (const auto now = coming.find(step); now != coming.end()) {
      for (const uint64_t seed : now->second) {
        const Settings settings = request_of(seed);
        ids[seed] = session.begin(std::span(&settings, 1));
      }
    }
    is_any_left = session.advance();
  }
  std::map<uint64_t, Result> results;
  for (const auto& [seed, id] : ids) results[seed] = session.take(id).front();
  return results;
}

class SessionOfRanks : public ::testing::TestWithParam<size_t> {};

TEST_P(SessionOfRanks, GivesEachOfTwentyRequestsWhatItsLoneRunDoes) {
  constexpr int64_t kRequests = 20;
  const Way way = exact_ways()[GetParam()];
  const parallel::Layout layout = layout_of(way, request_of(1));
  std::map<uint64_t, Result> together, alone, on_one_rank;
  comm::run_ranks_as_threads(
      way.options.degrees(),
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        std::map<uint64_t, Result> results = run_session(engine, layout, kRequests), lone;
        for (uint64_t seed = 1; seed <= kRequests; ++seed) lone[seed] = engine.run(request_of(seed), layout);
        if (world.rank() != 0) return;
        together = std::move(results);
        alone = std::move(lone);
      },
      comm::Wire::kShared);
  Engine engine(tiny(), kNoLimit);
  ASSERT_EQ(together.size(), static_cast<size_t>(kRequests));
  for (const auto& [seed, result] : together) {
    EXPECT_TRUE(equal(result, alone[seed])) << way.name << ", seed " << seed;
    EXPECT_LE(relative_error(result.latents, engine.run(request_of(seed)).latents), 1e-4)
        << way.name << ", seed " << seed;
  }
}

// A rank's activations of earlier steps are those of the request, not of the one beside it.
TEST(SessionOfRanks, KeepsStaleActivationsApart) {
  for (const size_t i : {2, 5}) {
    const Way way = ways()[i];
    const parallel::Layout layout = way.layout(request_of(1));
    ASSERT_FALSE(layout.is_exact()) << way.name;
    comm::run_ranks_as_threads(
        way.options.degrees(),
        [&](const comm::World& world) {
          Engine engine(tiny(), kNoLimit, world);
          for (const auto& [seed, result] : run_session(engine, layout, 4)) {
            const Result lone = engine.run(request_of(seed), layout);
            if (world.rank() == 0) {
              EXPECT_TRUE(equal(result, lone)) << way.name << ", seed " << seed;
            }
          }
        },
        comm::Wire::kShared);
  }
}

// Advances a run by some steps and saves it. The first call of advance() takes none.
SavedRun saved_after(Engine& engine, const parallel::Layout& layout, const Settings& settings,
                     int64_t calls) {
  Session session(engine, layout);
  const Session::Id id = session.begin(std::span(&settings, 1));
  for (int64_t i = 0; i < calls; ++i) session.advance();
  return session.save(id);
}

Result resumed(Engine& engine, const parallel::Layout& layout, const SavedRun& saved) {
  Session session(engine, layout);
  const Session::Id id = session.resume(saved);
  while (session.advance()) {
  }
  return session.take(id).front();
}

// Solvers with and without memory, and those that draw noise in their steps.
TEST(Session, TakesUpWhatWasSavedWithEverySampler) {
  Engine first(tiny(), kNoLimit), second(tiny(), kNoLimit);
  for (const samplers::SamplerName& sampler : samplers::known_samplers()) {
    Settings settings;
    try {
      settings = request_of(5, sampler.short_name);
      make_sampler(settings, tiny());
    } catch (const Error&) {
      continue;  // not with the model's schedule
    }
    const Result whole = first.run(settings);
    for (const int64_t calls : {0, 1, 2, 4, 6}) {
      const SavedRun saved = saved_after(first, {}, settings, calls);
      EXPECT_EQ(saved.denoising ? saved.denoising->next_step : -1, calls - 1);
      EXPECT_TRUE(equal(resumed(second, {}, saved), whole)) << sampler.short_name << ", " << calls;
      const SavedRun read = read_saved_run(write_saved_run(saved), tiny(), "bytes");
      EXPECT_TRUE(equal(resumed(second, {}, read), whole))
          << sampler.short_name << ", " << calls << ", as bytes";
    }
  }
}

// In the layout in which it was saved a run goes on bit for bit, and in others as these are.
TEST_P(SessionOfRanks, TakesUpWhatWasSavedInAnyLayout) {
  const Way way = exact_ways()[GetParam()];
  for (const char* scheduler : {"unipc", "euler-a"}) {
    const Settings settings = request_of(5, scheduler);
    const parallel::Layout layout = layout_of(way, settings);
    Engine alone(tiny(), kNoLimit);
    const SavedRun saved_alone = saved_after(alone, {}, settings, 3);
    SavedRun saved;
    Result whole, same, moved_here;
    comm::run_ranks_as_threads(
        way.options.degrees(),
        [&](const comm::World& world) {
          Engine engine(tiny(), kNoLimit, world);
          SavedRun only_requests;
          only_requests.requests = {settings};
          const bool is_first = world.rank() == 0;
          const Result of_ranks = engine.run(settings, layout);
          const SavedRun own = saved_after(engine, layout, settings, 4);
          const Result again = resumed(engine, layout, own);
          const Result moved = resumed(engine, layout, is_first ? saved_alone : only_requests);
          if (!is_first) return;
          whole = of_ranks, saved = own, same = again, moved_here = moved;
        },
        comm::Wire::kShared);
    EXPECT_TRUE(equal(same, whole)) << way.name;
    EXPECT_LE(relative_error(moved_here.latents, whole.latents), 1e-4) << way.name;
    EXPECT_LE(relative_error(resumed(alone, {}, saved).latents, whole.latents), 1e-4) << way.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, SessionOfRanks, ::testing::Range<size_t>(0, exact_ways().size()));

// A part of the bytes and other bytes are refused, whatever they lack.
TEST(Session, RefusesBytesThatAreNoSavedRun) {
  Engine engine(tiny(), kNoLimit);
  const std::string bytes = write_saved_run(saved_after(engine, {}, request_of(5, "unipc"), 3));
  for (size_t length = 0; length < bytes.size(); length += 97)
    EXPECT_THROW(read_saved_run(bytes.substr(0, length), tiny(), "bytes"), Error) << length;
  weights::FileContents contents = weights::read_safetensors(bytes, "bytes");
  for (const char* const name : {"latents", "history.0", "generator.0"}) {
    weights::FileContents damaged = contents;
    damaged.tensors[name] = damaged.tensors[name].narrow(0, 0, 0);
    EXPECT_THROW(read_saved_run(weights::write_safetensors(damaged), tiny(), "bytes"), Error) << name;
  }
  for (const char* const text :
       {"", "{}", "[]", R"({"requests": [], "group": 0, "step_seconds": [], "next_step": 1})",
        R"({"requests": [{"height": "x"}], "group": 0, "step_seconds": []})"}) {
    contents.metadata["run"] = text;
    EXPECT_THROW(read_saved_run(weights::write_safetensors(contents), tiny(), "bytes"), Error) << text;
  }
}

// Groups of pictures that are done are saved with the run.
TEST(Session, TakesUpARunOfSeveralGroups) {
  Request request = tiny_request(256, 256, 3);
  request.num_images_per_prompt = 12;  // two groups
  request.num_inference_steps = 2;
  const Settings settings = resolve(request, tiny());
  Engine engine(tiny(), kNoLimit);
  const Result whole = engine.run(settings);
  for (const int64_t calls : {2, 3, 4}) {
    const SavedRun saved = saved_after(engine, {}, settings, calls);
    EXPECT_EQ(saved.group, calls < 3 ? 0U : 1U);
    const Result result = resumed(engine, {}, read_saved_run(write_saved_run(saved), tiny(), "bytes"));
    EXPECT_TRUE(equal(result, whole)) << calls;
    EXPECT_EQ(result.step_seconds.size(), whole.step_seconds.size()) << calls;  // no step was taken twice
  }
}

TEST(SessionOfRanks, RefusesToSaveWithoutTheActivationsOfEarlierSteps) {
  const Way way = ways()[5];
  const Settings settings = request_of(1);
  const parallel::Layout layout = way.layout(settings);
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        Session session(engine, layout);
        const Session::Id id = session.begin(std::span(&settings, 1));
        session.advance();
        EXPECT_THROW(session.save(id), Error);
        while (session.advance()) {
        }
        const Result result = session.take(id).front(), expected = engine.run(settings, layout);
        if (world.rank() == 0) {
          EXPECT_TRUE(equal(result, expected));
        }
      },
      comm::Wire::kShared);
}

// What is under way of a run that is dropped does not reach the others, nor the next one.
TEST_P(SessionOfRanks, DropsARunBetweenSteps) {
  for (const Way& way : {exact_ways()[GetParam()], ways()[2], ways()[5]}) {
    const Settings one = request_of(1), other = request_of(2);
    const parallel::Layout layout =
        way.name == exact_ways()[GetParam()].name ? layout_of(way, one) : way.layout(one);
    comm::run_ranks_as_threads(
        way.options.degrees(),
        [&](const comm::World& world) {
          Engine engine(tiny(), kNoLimit, world);
          const Result expected = engine.run(one, layout);
          for (int64_t calls = 0; calls < 5; ++calls) {
            Session session(engine, layout);
            const Session::Id dropped = session.begin(std::span(&other, 1));
            const Session::Id kept = session.begin(std::span(&one, 1));
            for (int64_t i = 0; i < calls; ++i) session.advance();
            session.drop(dropped);
            while (session.advance()) {
            }
            const Result result = session.take(kept).front();
            if (world.rank() == 0) {
              EXPECT_TRUE(equal(result, expected)) << way.name << ", " << calls;
            }
          }
        },
        comm::Wire::kShared);
  }
}

TEST(Session, RefusesRequestsOfAnotherShape) {
  Engine engine(tiny(), kNoLimit);
  Session session(engine);
  const Settings one = request_of(1), other = tiny_settings(2);
  session.begin(std::span(&one, 1));
  EXPECT_THROW(session.begin(std::span(&other, 1)), Error);
}

// What a run among others ends with when its observer throws or cancels at a call.
struct Ending {
  const char* name;
  Observer (*observer)();
};

struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const std::vector<Ending>& endings() {
  static const std::vector<Ending> all = {{"cancelled",
                                           [] {
                                             Observer observer;
                                             observer.cancelled = [asked = 0]() mutable {
                                               return ++asked > 8;
                                             };
                                             return observer;
                                           }},
                                          {"the end of encoding",
                                           [] {
                                             Observer observer;
                                             observer.finished = [](Phase phase, double) {
                                               if (phase == Phase::kEncode) throw Thrown("finished");
                                             };
                                             return observer;
                                           }},
                                          {"the end of the steps", [] {
                                             Observer observer;
                                             observer.finished = [](Phase phase, double) {
                                               if (phase == Phase::kDenoise) throw Thrown("finished");
                                             };
                                             return observer;
                                           }}};
  return all;
}

// Phases with messages are those of all ranks, so these callbacks are called where none is under way.
TEST(SessionOfRanks, EndsAloneWhatIsCancelledOrFails) {
  const Way way = exact_ways()[2];
  const parallel::Layout layout = layout_of(way, request_of(1));
  for (const Ending& ending : endings()) {
    comm::run_ranks_as_threads(
        2,
        [&](const comm::World& world) {
          Engine engine(tiny(), 0, world);
          const Settings good = request_of(1), bad = request_of(2), later = request_of(4);
          const Result expected = engine.run(good, layout), expected_later = engine.run(later, layout);
          Session session(engine, layout);
          const Session::Id first = session.begin(std::span(&good, 1));
          session.advance();
          const Session::Id second =
              session.begin(std::span(&bad, 1), world.rank() == 0 ? ending.observer() : Observer());
          session.advance();
          const Session::Id third = session.begin(std::span(&later, 1));
          while (session.advance()) {
          }
          EXPECT_ANY_THROW(session.take(second)) << ending.name;
          const Result result = session.take(first).front(), result_later = session.take(third).front();
          if (world.rank() > 0) return;
          EXPECT_TRUE(equal(result, expected)) << ending.name;
          EXPECT_TRUE(equal(result_later, expected_later)) << ending.name;
        },
        comm::Wire::kShared);
  }
}

// Amid messages ranks wait for each other; nobody knows what has arrived of the others' runs.
TEST(SessionOfRanks, EndsTogetherWhenARankFailsAmidMessages) {
  const Way way = exact_ways()[2];
  const parallel::Layout layout = layout_of(way, request_of(1));
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        const Settings good = request_of(1), bad = request_of(2);
        const Result expected = engine.run(good, layout);
        Observer failing;
        failing.computed = [](int64_t step, int64_t, int64_t, auto, auto) {
          if (step == 2) throw Thrown("computed");
        };
        Session session(engine, layout);
        const Session::Id first = session.begin(std::span(&good, 1));
        const Session::Id second =
            session.begin(std::span(&bad, 1), world.rank() == 1 ? failing : Observer());
        while (session.advance()) {
        }
        EXPECT_ANY_THROW(session.take(first));
        EXPECT_ANY_THROW(session.take(second));
        const Session::Id again = session.begin(std::span(&good, 1));
        while (session.advance()) {
        }
        const Result result = session.take(again).front();
        if (world.rank() == 0) {
          EXPECT_TRUE(equal(result, expected));
        }
      },
      comm::Wire::kShared);
}

}  // namespace
}  // namespace tessera::engine
