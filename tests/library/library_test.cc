// The library that other programs link gives what the engine below it gives, and leaves the process as it
// was.
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>

#include "core/log.h"
#include "plan/trace.h"
#include "tessera/engine.h"
#include "tessera/session.h"
#include "tessera/trace.h"
#include "tests/support/tiny_pixart.h"

namespace tessera {
namespace {

using engine::equal;

EngineOptions tiny_options() {
  EngineOptions options;
  options.model = golden_folder("tiny-pixart").string();
  return options;
}

Request request_of(uint64_t seed) {
  return engine::tiny_request(48, 32, seed, {seed % 2 == 0 ? "a cat" : "a red circle"});
}

TEST(Library, GeneratesWhatTheEngineDoes) {
  engine::Engine below(engine::tiny());
  Engine engine(tiny_options());
  const std::array requests = {request_of(1), request_of(2)};
  const std::vector<Result> results = engine.generate(requests);
  ASSERT_EQ(results.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(equal(results[i], below.run(engine::resolve(requests[i], engine::tiny()))));
    EXPECT_TRUE(equal(results[i], engine.generate(requests[i])));
  }
  EXPECT_EQ(engine.bytes_loaded(), 0U);
}

TEST(Library, KeepsWeightsWithinItsBudget) {
  EngineOptions options = tiny_options();
  options.memory_budget = engine::kNoLimit;
  Engine engine(options);
  const Result first = engine.generate(request_of(1));
  EXPECT_GT(engine.bytes_loaded(), 0U);
  EXPECT_TRUE(equal(first, engine.generate(request_of(1))));
}

TEST(Library, SessionsSaveAndResumeRuns) {
  Engine engine(tiny_options());
  const Result expected = engine.generate(request_of(3));
  Session session(engine);
  const Session::Id other = session.begin(request_of(4));
  const Session::Id id = session.begin(request_of(3));
  ASSERT_TRUE(session.advance());
  const SavedRun saved = session.save(id);
  session.drop(id);
  while (session.is_running(other)) session.advance();
  const Session::Id again = session.resume(saved);
  while (session.advance()) {
  }
  EXPECT_TRUE(equal(session.take(again).at(0), expected));
  EXPECT_TRUE(equal(session.take(other).at(0), engine.generate(request_of(4))));
}

TEST(Library, ChoosesWhatARequestLeavesOut) {
  const Engine engine(tiny_options());
  Request request;
  request.prompts = {"a cat"};
  const Request resolved = engine.resolved(request);
  EXPECT_TRUE(resolved.height && resolved.num_inference_steps && resolved.seed && resolved.dtype);
  request.resolution_binning = false;
  request.height = 7;
  EXPECT_THROW((void)engine.resolved(request), Error);
}

TEST(Library, ReadsAndWritesRequestsAsJson) {
  const Request request = read_request(R"({"prompt": "a cat", "seed": 5, "height": 48, "dtype": "bf16"})");
  EXPECT_EQ(request.prompts, std::vector<std::string>{"a cat"});
  EXPECT_EQ(request.seed, 5U);
  EXPECT_EQ(request.height, 48);
  EXPECT_EQ(request.dtype, at::kBFloat16);
  EXPECT_EQ(write_request(read_request(write_request(request))), write_request(request));
  EXPECT_THROW((void)read_request(R"({"promt": "a cat"})"), Error);
  EXPECT_THROW((void)read_request("["), Error);
}

TEST(Library, TracesEveryRankOrOne) {
  EngineOptions options = tiny_options();
  options.parallel.ulysses_degree = 2;
  const plan::Trace all = plan::read_trace(trace(options, request_of(1)), "trace");
  EXPECT_EQ(all.world_size, 2);
  ASSERT_EQ(all.ranks.size(), 2U);
  const plan::Trace one = plan::read_trace(trace(options, request_of(1), 1), "trace");
  ASSERT_EQ(one.ranks.size(), 1U);
  EXPECT_EQ(one.ranks[0], all.ranks[1]);
  EXPECT_THROW((void)trace(options, request_of(1), 2), Error);
}

TEST(Library, RefusesALayoutOfMoreRanksThanTheWorldHas) {
  EngineOptions options = tiny_options();
  options.parallel.ulysses_degree = 2;
  Engine engine(options);
  EXPECT_THROW((void)engine.generate(request_of(1)), Error);
  EXPECT_THROW((void)engine.generate(std::span<const Request>()), Error);
}

// What a program has set of its process.
struct Process {
  std::array<struct sigaction, 32> actions = {};
  at::Allocator* allocator = c10::GetCPUAllocator();
  int threads = at::get_num_threads();

  Process() {
    for (int number = 1; number < 32; ++number)
      ::sigaction(number, nullptr, &actions[static_cast<size_t>(number)]);
  }
};

TEST(Library, LeavesTheProcessAsItWas) {
  std::vector<std::string> logged;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { logged.push_back(message); });
  const Process before;
  Engine engine(tiny_options());
  (void)engine.generate(request_of(1));
  const Process after;
  EXPECT_EQ(after.allocator, before.allocator);
  EXPECT_EQ(after.threads, before.threads);
  for (size_t number = 1; number < 32; ++number)
    EXPECT_EQ(after.actions[number].sa_sigaction, before.actions[number].sa_sigaction) << number;
  logged.clear();
  log_warning("to the program's sink");
  EXPECT_EQ(logged, std::vector<std::string>{"to the program's sink"});
}

}  // namespace
}  // namespace tessera
