// An engine that paints many requests, cancelled ones among them, paints each as one that is new.
#include "engine/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/heap.h"
#include "engine/generate.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"

namespace tessera::engine {
namespace {

constexpr uint64_t kNoLimit = uint64_t{1} << 40;

const Model& tiny() {
  static const Model model = read_model(golden_folder("tiny-pixart"));
  return model;
}

Request tiny_request(int64_t height, int64_t width, uint64_t seed,
                     std::vector<std::string> prompts = {"a cat"}) {
  Request request;
  request.prompts = std::move(prompts);
  request.height = height;
  request.width = width;
  request.resolution_binning = false;
  request.num_inference_steps = 4;
  request.seed = seed;
  request.dtype = at::kFloat;
  return request;
}

Settings tiny_settings(uint64_t seed) {
  return resolve(tiny_request(16, 32, seed), tiny());
}

bool equal(const Result& a, const Result& b) {
  if (!a.latents.equal(b.latents) || a.images.size() != b.images.size()) return false;
  for (size_t i = 0; i < a.images.size(); ++i) {
    if (a.images[i].pixels != b.images[i].pixels) return false;
  }
  return true;
}

TEST(Engine, LoadsEachPartOnceWhereTheBudgetAllows) {
  std::vector<Stage> started;
  Observer observer;
  observer.started = [&](Stage stage) { started.push_back(stage); };
  Engine engine(tiny(), kNoLimit);
  EXPECT_EQ(engine.bytes_loaded(), 0U);
  const Result first = engine.run(tiny_settings(1), {}, observer);
  EXPECT_EQ(started.size(), 6U);
  started.clear();
  const Result second = engine.run(tiny_settings(2), {}, observer);
  EXPECT_EQ(started, (std::vector<Stage>{Stage::kEncode, Stage::kDenoise, Stage::kDecode}));
  EXPECT_EQ(second.weights_bytes, first.weights_bytes);
  EXPECT_TRUE(equal(first, generate(tiny_settings(1), tiny())));
  EXPECT_TRUE(equal(second, generate(tiny_settings(2), tiny())));
  EXPECT_FALSE(equal(first, second));
}

// From room for all parts to room for none: what is in memory never goes over the budget, the denoiser is the
// last to go, and pictures do not change.
TEST(Engine, KeepsWhatFitsIntoItsBudget) {
  const Result expected = generate(tiny_settings(1), tiny());
  uint64_t all = 0;
  {
    Engine engine(tiny(), kNoLimit);
    engine.run(tiny_settings(1));
    all = engine.bytes_loaded();
  }
  std::set<std::vector<Stage>> ways;
  for (uint64_t budget = all + all / 16; budget > all / 16; budget -= all / 16) {
    Engine engine(tiny(), budget);
    engine.run(tiny_settings(2));
    EXPECT_LE(engine.bytes_loaded(), budget);
    std::vector<Stage> loaded;
    Observer observer;
    observer.started = [&](Stage stage) {
      if (stage == Stage::kLoadTextEncoder || stage == Stage::kLoadDenoiser || stage == Stage::kLoadDecoder)
        loaded.push_back(stage);
    };
    EXPECT_TRUE(equal(engine.run(tiny_settings(1), {}, observer), expected)) << budget << " of " << all;
    EXPECT_LE(engine.bytes_loaded(), budget);
    ways.insert(loaded);
  }
  EXPECT_TRUE(ways.contains({}));
  EXPECT_TRUE(ways.contains({Stage::kLoadTextEncoder}));
  EXPECT_GE(ways.size(), 3U);
}

// Parts of another dtype are other parts.
TEST(Engine, KeepsAPartForEachDtype) {
  Engine engine(tiny(), kNoLimit);
  engine.run(tiny_settings(1));
  const uint64_t in_fp32 = engine.bytes_loaded();
  Settings half = tiny_settings(1);
  half.request.dtype = at::kBFloat16;
  const Result expected = generate(half, tiny());
  EXPECT_TRUE(equal(engine.run(half), expected));
  EXPECT_GT(engine.bytes_loaded(), in_fp32);
  EXPECT_TRUE(equal(engine.run(tiny_settings(1)), generate(tiny_settings(1), tiny())));
}

std::vector<Settings> mixed_batch() {
  std::vector<Settings> batch;
  Request request = tiny_request(16, 32, 5, {"a cat", "a red circle above a blue square"});
  request.num_images_per_prompt = 2;
  batch.push_back(resolve(request, tiny()));
  request = tiny_request(16, 32, 6, {"a dog"});
  request.negative_prompt = "blurry";
  request.guidance_scale = 3.0;
  batch.push_back(resolve(request, tiny()));
  request.prompts = {"a house"};
  request.guidance_scale = 1.0;
  batch.push_back(resolve(request, tiny()));
  return batch;
}

// A batch of requests with settings of their own: each is as it is alone but for the rounding of products of
// more rows. The samplers of the second round draw noise at each step.
TEST(Engine, PaintsRequestsInOneBatchAsAlone) {
  for (const char* scheduler : {"DPMSolverMultistepScheduler", "EulerAncestralDiscreteScheduler"}) {
    Engine engine(tiny(), kNoLimit);
    std::vector<Settings> batch = mixed_batch();
    for (Settings& settings : batch) {
      settings.scheduler = scheduler;
      settings.request.scheduler = scheduler;
    }
    const std::vector<Result> together = engine.run(batch);
    ASSERT_EQ(together.size(), batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      const Result alone = engine.run(batch[i]);
      ASSERT_EQ(together[i].latents.sizes(), alone.latents.sizes());
      ASSERT_EQ(together[i].images.size(), alone.images.size());
      EXPECT_LE(relative_error(together[i].latents, alone.latents), 1e-5) << scheduler << ", request " << i;
    }
  }
}

TEST(Engine, RefusesABatchOfSettingsThatDoNotGoTogether) {
  Engine engine(tiny());
  std::vector<Settings> batch = mixed_batch();
  batch[2] = resolve(tiny_request(32, 32, 5), tiny());
  try {
    engine.run(batch);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("height"), std::string::npos) << error.what();
  }
}

// ---- Many requests on several ranks.

struct Way {
  std::string name;
  parallel::ParallelOptions options;
};

std::vector<Way> ways() {
  std::vector<Way> all(5);
  all[0] = {"alone", {}};
  all[1].name = "cfg and ulysses";
  all[1].options.use_cfg_parallel = true;
  all[1].options.ulysses_degree = 2;
  all[2].name = "pipefusion";
  all[2].options.pipefusion_parallel_degree = 2;
  all[2].options.num_pipeline_patch = 2;
  all[3].name = "data and tensor";
  all[3].options.data_parallel_degree = 2;
  all[3].options.tensor_parallel_degree = 2;
  all[4].name = "data and pipefusion";
  all[4].options.data_parallel_degree = 2;
  all[4].options.pipefusion_parallel_degree = 2;
  return all;
}

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

struct Resources {
  size_t threads = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");
};

double resident_megabytes() {
  return_freed_memory();
  std::ifstream status("/proc/self/statm");
  double all = 0, resident = 0;
  status >> all >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

constexpr int64_t kSoakRequests = 24;  // different ones

// The requests of a soak, mixed in size, number of pictures and guidance.
Settings soak_request(int64_t number) {
  constexpr std::array<std::array<int64_t, 2>, 4> kSizes = {{{32, 32}, {32, 64}, {64, 32}, {48, 48}}};
  const auto [height, width] = kSizes[static_cast<size_t>(number) % kSizes.size()];
  Request request =
      tiny_request(height, width, static_cast<uint64_t>(number), {"a cat", "a dog and a house"});
  request.num_images_per_prompt = 1 + number % 2;
  request.negative_prompt = number % 3 == 0 ? "blurry" : "";
  return resolve(request, tiny());
}

class Soak : public ::testing::TestWithParam<size_t> {};

// One in five is cancelled by another thread at a random moment. `make soak` runs more of them (the
// variable).
TEST_P(Soak, CancelledRequestsLeaveNothingBehind) {
  const Way way = ways()[GetParam()];
  const char* const wanted = std::getenv("TESSERA_SOAK_REQUESTS");
  const int64_t requests = wanted ? std::atoll(wanted) : 25, early = std::max<int64_t>(requests / 10, 10);
  const auto layout_of = [&](const Settings& settings) {
    return parallel::resolve_layout(way.options, workload(settings, tiny()), std::nullopt);
  };
  std::atomic<int64_t> cancelled = 0;
  // What new ranks paint, each in a world of its own.
  const auto fresh = [&](int64_t number) {
    Result result;
    comm::run_ranks_as_threads(
        way.options.degrees(),
        [&](comm::World world) {
          const Settings settings = soak_request(number);
          Result own = generate(settings, tiny(), {}, world, layout_of(settings));
          if (world.rank() == 0) result = std::move(own);
        },
        comm::Wire::kShared);
    return result;
  };
  std::vector<Result> expected;
  for (int64_t number = 0; number < std::min(requests, kSoakRequests); ++number)
    expected.push_back(fresh(number));
  Resources at_begin, at_end;
  double memory_early = 0, memory_late = 0;
  // While all ranks are there, and between two requests.
  const auto measure = [](comm::World& world, Resources& resources, double& memory) {
    std::vector<int64_t> all(static_cast<size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    const comm::Group group = world.group(all, "measure");
    comm::barrier(group);
    if (world.rank() == 0) {
      resources = {};
      memory = resident_megabytes();
    }
    comm::barrier(group);
  };
  comm::run_ranks_as_threads(
      way.options.degrees(),
      [&](comm::World world) {
        Engine engine(tiny(), kNoLimit, world);
        std::mt19937 random(1);
        std::atomic<bool> flag = false;
        double seconds = 0.1;
        for (int64_t number = 0; number < requests; ++number) {
          const Settings settings = soak_request(number % kSoakRequests);
          const bool cancels = number % 5 == 4 && world.rank() == 0;
          flag = false;
          Observer observer;
          if (world.rank() == 0) observer.cancelled = [&] { return flag.load(); };
          const double moment = std::uniform_real_distribution<>(0, 1)(random) * seconds;
          std::thread canceller;
          if (cancels) {
            canceller = std::thread([&] {
              std::this_thread::sleep_for(std::chrono::duration<double>(moment));
              flag = true;
            });
          }
          bool done = false;
          try {
            const Result result = engine.run(settings, layout_of(settings), observer);
            done = true;
            if (world.rank() == 0) {
              seconds = result.seconds.total;
              EXPECT_TRUE(equal(result, expected[static_cast<size_t>(number % kSoakRequests)]))
                  << way.name << ", request " << number;
            }
          } catch (const Cancelled&) {
            if (world.rank() == 0) ++cancelled;
          }
          if (canceller.joinable()) canceller.join();
          EXPECT_TRUE(done || cancels || world.rank() != 0) << "request " << number;
          if (number + 1 == early) measure(world, at_begin, memory_early);
          if (number + 1 == requests) measure(world, at_end, memory_late);
        }
      },
      comm::Wire::kShared);
  EXPECT_GT(cancelled, 0);
  EXPECT_EQ(at_end.threads, at_begin.threads);
  EXPECT_EQ(at_end.descriptors, at_begin.descriptors);
  EXPECT_LE(memory_late, 1.03 * memory_early);
  if (wanted) {
    fmt::print(
        "{}: {} requests, {} cancelled; {:.1f} MB after {}, {:.1f} MB after {}; {} threads, {} descriptors\n",
        way.name, requests, cancelled.load(), memory_early, early, memory_late, requests, at_end.threads,
        at_end.descriptors);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Soak, ::testing::Range<size_t>(0, ways().size()));

}  // namespace
}  // namespace tessera::engine
