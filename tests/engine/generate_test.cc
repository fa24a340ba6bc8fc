#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "tests/support/generate.h"
#include "tests/support/golden.h"

namespace tessera::engine {
namespace {

class GenerateTest : public ::testing::Test {
 protected:
  Result run(const Observer& observer = {}) const {
    Request request;
    request.prompts = {"a cat"};
    request.height = 16;
    request.width = 32;
    request.resolution_binning = false;
    request.num_inference_steps = 2;
    request.dtype = at::kFloat;
    return generate(resolve(request, model_), model_, observer);
  }

  Model model_ = read_model(golden_folder("tiny-pixart"));
};

TEST_F(GenerateTest, SaysWhatWeightsTake) {
  const Result result = run();
  ASSERT_EQ(result.images.size(), 1U);
  EXPECT_EQ(result.images[0].height, 16);
  EXPECT_EQ(result.step_seconds.size(), 2U);
  EXPECT_GT(result.bytes_read, 0U);
  EXPECT_EQ(result.weights_bytes, result.bytes_read);  // the checkpoint is in fp32, too
  EXPECT_GT(result.weights_memory_bytes, result.bytes_read / 2);
  EXPECT_LT(result.weights_memory_bytes, result.bytes_read * 4);
}

TEST_F(GenerateTest, WhatTheObserverTakesIsNoPartOfDecoding) {
  constexpr std::chrono::milliseconds kTaken(200);
  double told = 0;
  Observer observer;
  observer.decoded_image = [&](int64_t, const Image&) { std::this_thread::sleep_for(kTaken); };
  observer.finished = [&](Phase phase, double seconds) { told = phase == Phase::kDecode ? seconds : told; };
  const Seconds seconds = run(observer).seconds;
  EXPECT_GE(seconds.write, std::chrono::duration<double>(kTaken).count());
  EXPECT_EQ(told, seconds.decode);
  EXPECT_LE(seconds.load + seconds.encode + seconds.denoise + seconds.decode + seconds.write, seconds.total);
}

// Peak memory is that of the largest part, because only one part is loaded at a time.
TEST_F(GenerateTest, APartIsGoneBeforeTheNextIsLoaded) {
  const auto mapped_parts = [] {
    std::set<std::string> parts;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (!line.ends_with(".safetensors")) continue;
      const std::string part = std::filesystem::path(line.substr(line.find('/'))).parent_path().filename();
      // Other tests may have mapped other models.
      if (part == "text_encoder" || part == "transformer" || part == "vae") parts.insert(part);
    }
    return parts;
  };
  std::map<Phase, std::set<std::string>> at_begin;
  Observer observer;
  observer.started = [&](Phase phase) { at_begin[phase] = mapped_parts(); };
  run(observer);
  const std::set<std::string> none, text = {"text_encoder"};
  EXPECT_EQ(at_begin.at(Phase::kLoadTextEncoder), none);
  EXPECT_EQ(at_begin.at(Phase::kEncode), text);
  EXPECT_EQ(at_begin.at(Phase::kLoadDenoiser), none);
  EXPECT_EQ(at_begin.at(Phase::kLoadDecoder), none);
}

// Cancelling during the last phase must also end the run, because nothing may be written afterwards.
TEST_F(GenerateTest, EndsWhereverItIsCancelled) {
  using enum Phase;
  size_t before = 0;  // phases that end before the one in which the wish comes
  for (const Phase last : {kLoadTextEncoder, kEncode, kLoadDenoiser, kDenoise, kLoadDecoder, kDecode}) {
    bool wished = false;
    std::vector<Phase> finished;
    Observer observer;
    observer.started = [&](Phase phase) { wished |= phase == last; };
    observer.finished = [&](Phase phase, double) { finished.push_back(phase); };
    observer.cancelled = [&] { return wished; };
    EXPECT_THROW(run(observer), Cancelled) << phase_name(last);
    EXPECT_EQ(finished.size(), before++);
  }
}

}  // namespace
}  // namespace tessera::engine
