// Tests that a request whose run others join and leave at random, between steps, gets what it gets alone: the
// same bits as in a run of its own on the same ranks, and within rounding what one rank makes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "engine/session.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pipeline.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::engine {
namespace {

constexpr int64_t kSteps = 5;
constexpr uint64_t kRequests = 6;  // that differ

// Requests that can share a run, and differ in all that requests of one run may. The model has enough heads
// and blocks for each method on three ranks.
Settings request_of(uint64_t number) {
  const std::vector<std::string> texts = {"a cat", "a red circle above a blue square", "a house"};
  Request request = small_request();
  request.prompts = {texts[number % texts.size()]};
  request.seed = number;
  request.height = 48;
  request.num_inference_steps = kSteps;
  request.guidance_scale = number % 2 == 0 ? 3.0 : 4.5;
  request.num_images_per_prompt = number == 5 ? 2 : 1;
  return resolve(request, tiny_z_image());
}

Way pipefusion(int64_t ranks, int64_t patches) {
  Way way{fmt::format("{} stages, {} patches", ranks, patches), parallel::degrees(1, false, ranks, 1, 1, 1)};
  way.options.num_pipeline_patch = patches;
  way.options.warmup_steps = 1;
  return way;
}

std::vector<Way> layouts() {
  using parallel::degrees;
  std::vector<Way> all = {{"one rank", {}}, {"cfg", degrees(1, true, 1, 1, 1, 1)}};
  for (const int64_t ranks : {2, 3}) {
    all.push_back({fmt::format("ulysses {}", ranks), degrees(1, false, 1, 1, ranks, 1)});
    all.push_back({fmt::format("ring {}", ranks), degrees(1, false, 1, ranks, 1, 1)});
    all.push_back({fmt::format("tensor {}", ranks), degrees(1, false, 1, 1, 1, ranks)});
    all.push_back(pipefusion(ranks, 1));
    all.push_back(pipefusion(ranks, ranks));  // with activations of earlier steps
  }
  return all;
}

parallel::Layout layout_of(const Way& way) {
  return parallel::resolve_layout(way.options, workload(request_of(0), tiny_z_image()), std::nullopt);
}

struct Made {
  uint64_t number;  // of the request
  Result result;
};

struct Play {
  std::vector<Made> made;
  int64_t joins = 0, leaves = 0, returns = 0;
};

// Draws what happens to the runs of a session before each step. Ranks with the same seed draw the same.
class Player {
 public:
  Player(Engine& engine, const parallel::Layout& layout, uint64_t seed)
      : session_(engine, layout), is_exact_(layout.is_exact()), random_(seed) {}

  Play play() {
    constexpr int64_t kTurns = 24;
    bool is_any_left = true;
    for (int64_t turn = 0; turn < kTurns || is_any_left || !away_.empty(); ++turn) {
      take_up_again(turn);
      for (int64_t acts = turn < kTurns ? draw(0, 2) : 0; acts > 0; --acts) act(turn);
      is_any_left = session_.advance();
      take_what_has_ended();
    }
    return std::move(play_);
  }

 private:
  struct Running {
    Session::Id id;
    std::vector<uint64_t> numbers;
  };
  struct Away {
    int64_t until;
    SavedRun saved;
    std::vector<uint64_t> numbers;
  };

  int64_t draw(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }

  void act(int64_t turn) {
    const int64_t kind = draw(0, 5);
    if (kind < 3 || running_.empty()) return begin();
    const size_t place = static_cast<size_t>(draw(0, std::ssize(running_) - 1));
    const Running run = running_[place];
    if (kind == 3) return session_.watch(run.id, draw(0, 2));
    // It leaves for a while or for good. With activations of earlier steps it cannot be saved.
    if (kind == 4 && !is_exact_) return;
    if (kind == 4) away_.push_back({turn + draw(1, 3), session_.save(run.id), run.numbers});
    session_.drop(run.id);
    ++play_.leaves;
    running_.erase(running_.begin() + static_cast<int64_t>(place));
  }

  // A batch of one to three requests.
  void begin() {
    play_.joins += running_.empty() ? 0 : 1;
    std::vector<Settings> requests;
    Running run;
    for (int64_t left = draw(1, 3); left > 0; --left) {
      run.numbers.push_back(static_cast<uint64_t>(draw(0, kRequests - 1)));
      requests.push_back(request_of(run.numbers.back()));
    }
    run.id = session_.begin(requests, observer());
    running_.push_back(run);
  }

  void take_up_again(int64_t turn) {
    for (auto at = away_.begin(); at != away_.end();) {
      if (at->until > turn) {
        ++at;
        continue;
      }
      running_.push_back({session_.resume(at->saved, observer()), at->numbers});
      ++play_.returns;
      at = away_.erase(at);
    }
  }

  void take_what_has_ended() {
    std::erase_if(running_, [&](const Running& run) {
      if (session_.is_running(run.id)) return false;
      std::vector<Result> results = session_.take(run.id);
      for (size_t i = 0; i < results.size(); ++i)
        play_.made.push_back({run.numbers[i], std::move(results[i])});
      return true;
    });
  }

  static Observer observer() {
    Observer observer;
    observer.previewed = [](const Preview&) {};
    observer.preview_sketches = true;
    return observer;
  }

  Session session_;
  const bool is_exact_;
  std::mt19937 random_;  // whose numbers, unlike those of distributions, are the same everywhere
  std::vector<Running> running_;
  std::vector<Away> away_;
  Play play_;
};

class JoinedRunsOfRanks : public ::testing::TestWithParam<std::tuple<size_t, uint64_t>> {};

TEST_P(JoinedRunsOfRanks, GiveEachRequestWhatItGetsAlone) {
  const Way way = layouts()[std::get<0>(GetParam())];
  const uint64_t seed = std::get<1>(GetParam());
  const parallel::Layout layout = layout_of(way);
  Play play;
  std::map<uint64_t, Result> lone;
  comm::run_ranks_as_threads(
      way.options.degrees(),
      [&](const comm::World& world) {
        Engine engine(tiny_z_image(), kNoLimit, world);
        Play own = Player(engine, layout, seed).play();
        std::map<uint64_t, Result> expected;
        for (uint64_t number = 0; number < kRequests; ++number)
          expected[number] = engine.run(request_of(number), layout);
        if (world.rank() != 0) return;
        play = std::move(own);
        lone = std::move(expected);
      },
      comm::Wire::kShared);
  // One rank, with the same steps of PipeFusion.
  parallel::Layout alone;
  alone.patches = layout.patches;
  alone.warmup_steps = layout.warmup_steps;
  Engine engine(tiny_z_image(), kNoLimit);
  std::map<uint64_t, Result> of_one_rank;
  for (uint64_t number = 0; number < kRequests; ++number)
    of_one_rank[number] = engine.run(request_of(number), alone);
  for (const auto& [number, result] : play.made) {
    SCOPED_TRACE(fmt::format("{}, seed {}, request {}", way.name, seed, number));
    EXPECT_TRUE(equal(result, lone[number]));
    EXPECT_LE(relative_error(result.latents, of_one_rank[number].latents), 1e-4);
  }
  // Enough has happened to mean something.
  EXPECT_GE(play.made.size(), 8U);
  EXPECT_GE(play.joins, 4);
  EXPECT_GE(play.leaves, 1);
  if (layout.is_exact()) {
    EXPECT_GE(play.returns, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, JoinedRunsOfRanks,
    ::testing::Combine(::testing::Range<size_t>(0, layouts().size()), ::testing::Values<uint64_t>(1, 2)),
    [](const auto& info) {
      std::string name =
          fmt::format("{}, seed {}", layouts()[std::get<0>(info.param)].name, std::get<1>(info.param));
      std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

}  // namespace
}  // namespace tessera::engine
