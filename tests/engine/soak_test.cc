// Tests that an engine which runs many requests, some of them cancelled, gives each the result of a new
// engine and does not grow.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "comm/collectives.h"
#include "tests/support/generate.h"
#include "tests/support/rank_threads.h"
#include "tests/support/resident_memory.h"
#include "tests/support/tiny_pixart.h"
#include "weights/safetensors.h"

namespace tessera::engine {
namespace {

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

struct Resources {
  size_t threads = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");
};

constexpr int64_t kSoakRequests = 24;  // number of different requests

// Returns a request of the soak; they vary in size, number of pictures and negative prompt.
Settings soak_request(int64_t number) {
  constexpr std::array<std::array<int64_t, 2>, 4> kSizes = {{{32, 32}, {32, 64}, {64, 32}, {48, 48}}};
  const auto [height, width] = kSizes[static_cast<size_t>(number) % kSizes.size()];
  Request request =
      tiny_request(height, width, static_cast<uint64_t>(number), {"a cat", "a dog and a house"});
  request.num_images_per_prompt = 1 + number % 2;
  request.negative_prompts = {number % 3 == 0 ? "blurry" : ""};
  return resolve(request, tiny());
}

// Returns the result of new ranks in a new world.
Result generate_anew(const Way& way, int64_t number) {
  Result result;
  comm::run_ranks_as_threads(
      way.options.degrees(),
      [&](const comm::World& world) {
        const Settings settings = soak_request(number);
        Result own = generate(settings, tiny(), {}, world, way.layout(settings));
        if (world.rank() == 0) result = std::move(own);
      },
      comm::Wire::kShared);
  return result;
}

// Returns the same from a new process, which runs the test below.
constexpr const char* kRequest = "TESSERA_SOAK_REQUEST";  // way, request and file

Result generate_in_new_process(size_t way, int64_t number) {
  const std::string file = fmt::format("{}/soak-{}.safetensors", ::testing::TempDir(), ::getpid());
  const std::string command =
      fmt::format("{}='{} {} {}' /proc/{}/exe --gtest_filter=SoakProcessOfRanks.* > /dev/null", kRequest, way,
                  number, file, ::getpid());
  Result result;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  const auto generated = read_golden(file);  // an absolute path
  result.latents = generated.at("latents");
  const at::Tensor pixels = generated.at("images");
  for (int64_t i = 0; i < pixels.size(0); ++i) {
    const uint8_t* data = pixels[i].const_data_ptr<uint8_t>();
    result.images.push_back({pixels.size(1), pixels.size(2), {data, data + pixels[i].numel()}});
  }
  std::filesystem::remove(file);
  return result;
}

TEST(SoakProcessOfRanks, RunsOneRequest) {
  const char* const told = std::getenv(kRequest);
  if (!told) return;
  size_t way = 0;
  int64_t number = 0;
  std::string file;
  std::istringstream(told) >> way >> number >> file;
  const Result result = generate_anew(ways().at(way), number);
  const Image& first = result.images.at(0);
  std::vector<at::Tensor> pixels;
  for (const Image& image : result.images)
    pixels.push_back(
        at::from_blob(const_cast<uint8_t*>(image.pixels.data()), {first.height, first.width, 3}, at::kByte));
  weights::write_safetensors(file, {{"latents", result.latents.contiguous()}, {"images", at::stack(pixels)}});
}

class Soak : public ::testing::TestWithParam<size_t> {};

// Another thread cancels one request in five, by turns after a random step, which waits for the cancellation,
// and at a random moment, which may be too late. `make soak` sets the variable to run more requests.
TEST_P(Soak, CancelledRequestsLeaveNothingBehind) {
  const Way way = ways()[GetParam()];
  const char* const wanted = std::getenv("TESSERA_SOAK_REQUESTS");
  const int64_t requests = wanted ? std::atoll(wanted) : 15, early = std::max<int64_t>(requests / 10, 10);
  std::atomic<int64_t> cancelled = 0;
  std::vector<Result> expected;
  for (int64_t number = 0; number < std::min(requests, kSoakRequests); ++number)
    expected.push_back(wanted ? generate_in_new_process(GetParam(), number) : generate_anew(way, number));
  Resources at_begin, at_end;
  double memory_early = 0, memory_late = 0;
  // Measures while all ranks exist and no request runs.
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
          const double moment = std::uniform_real_distribution<>(0, 1)(random);
          const bool after_step = number / 5 % 2 == 0;
          const auto step = 1 + static_cast<int64_t>(moment * static_cast<double>(settings.steps - 1));
          const std::chrono::duration<double> delay(moment * seconds);
          std::promise<void> reached;
          std::thread canceller;
          if (cancels) {
            canceller = std::thread([&] {
              if (after_step) {
                reached.get_future().wait();
              } else {
                std::this_thread::sleep_for(delay);
              }
              flag = true;
              flag.notify_one();
            });
            observer.progressed = [&](Phase stage, int64_t done, int64_t) {
              if (!after_step || stage != Phase::kDenoise || done != step) return;
              reached.set_value();
              flag.wait(false);
            };
          }
          bool done = false;
          try {
            const Result result = engine.run(settings, way.layout(settings), observer);
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

// Returns the megabytes of shared memory that hold messages between ranks of this process.
double megabytes_of_messages() {
  std::set<ino_t> seen;  // both ends have one file
  double bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat status = {};
    std::error_code code;
    const std::string name = std::filesystem::read_symlink(entry.path(), code).string();
    if (!name.starts_with("/memfd:tessera-messages") || ::stat(entry.path().c_str(), &status) != 0) continue;
    if (seen.insert(status.st_ino).second) bytes += static_cast<double>(status.st_blocks) * 512;
  }
  return bytes / 1e6;
}

TEST(Engine, GivesBackTheMemoryOfMessagesThatASmallRequestOfRanksDoesNotNeed) {
  const Way way = ways()[1];
  double before = 0, large = 0, after = 0;
  comm::run_ranks_as_threads(
      way.options.degrees(),
      [&](comm::World world) {
        Engine engine(tiny(), kNoLimit, world);
        std::vector<int64_t> all(static_cast<size_t>(world.size()));
        std::iota(all.begin(), all.end(), 0);
        const comm::Group group = world.group(all, "measure");
        const auto run = [&](int64_t side, double& megabytes) {
          Request request = tiny_request(side, side, 1);
          request.num_inference_steps = 1;
          request.output_type = OutputType::kLatent;
          const Settings settings = resolve(request, tiny());
          engine.run(settings, way.layout(settings));
          comm::barrier(group);
          if (world.rank() == 0) megabytes = megabytes_of_messages();
          comm::barrier(group);
        };
        run(32, before);
        run(1024, large);
        run(32, after);
      },
      comm::Wire::kShared);
  EXPECT_GT(large, before + 1);
  EXPECT_LT(after, before + 0.25);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Soak, ::testing::Range<size_t>(0, ways().size()));

}  // namespace
}  // namespace tessera::engine
