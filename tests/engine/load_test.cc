// Tests that an engine loads before the first request what each rank needs of it, and no more.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/generate.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::engine {
namespace {

class LoadOfRanks : public ::testing::TestWithParam<size_t> {};

TEST_P(LoadOfRanks, IsThatOfTheFirstRequest) {
  const Way way = ways()[GetParam()];
  Request request = tiny_request(48, 32, 3, {"a cat", "a dog"});
  const Settings settings = resolve(request, tiny());
  for (const bool together : {false, true}) {
    parallel::Layout layout = way.layout(settings);
    layout.vae_parallel = together;
    comm::run_ranks_as_threads(
        way.options.degrees(),
        [&](const comm::World& world) {
          Engine engine(tiny(), kNoLimit, world), other(tiny(), kNoLimit, world);
          engine.load(settings, layout);
          const uint64_t bytes = engine.bytes_loaded();
          std::vector<Phase> started;
          Observer observer;
          observer.started = [&](Phase phase) { started.push_back(phase); };
          const Result result = engine.run(settings, layout, observer);
          for (const Phase phase : {Phase::kLoadTextEncoder, Phase::kLoadDenoiser, Phase::kLoadDecoder})
            EXPECT_EQ(std::count(started.begin(), started.end(), phase), 0) << way.name;
          const Result expected = other.run(settings, layout);
          EXPECT_EQ(bytes, other.bytes_loaded()) << way.name << ", rank " << world.rank();
          EXPECT_TRUE(world.rank() != 0 || equal(result, expected)) << way.name;
        },
        comm::Wire::kShared);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LoadOfRanks, ::testing::Range<size_t>(0, ways().size()));

// What the budget has no room for is not read in vain.
TEST(Load, LeavesOutWhatDoesNotStay) {
  Engine engine(tiny(), 0);
  engine.load(tiny_settings(1));
  EXPECT_EQ(engine.bytes_loaded(), 0U);
  EXPECT_EQ(engine.run(tiny_settings(1)).bytes_read, generate(tiny_settings(1), tiny()).bytes_read);
}

}  // namespace
}  // namespace tessera::engine
