// The valid degrees that a refusal advises.
#include <gtest/gtest.h>

#include <sstream>

#include "parallel/layout.h"
#include "tests/support/degrees.h"

namespace tessera::parallel {
namespace {

// Returns the degrees that a line advises; each has the form of degrees_text() followed by " on N ranks".
std::vector<ParallelOptions> advised_in(const std::string& line) {
  constexpr std::string_view kBegin = "nearest valid: ", kNext = ", or ";
  std::vector<ParallelOptions> all;
  for (size_t at = line.find(kBegin); at != std::string::npos; at = line.find(kNext, at + 1)) {
    ParallelOptions& advised = all.emplace_back();
    std::istringstream words(line.substr(at + (all.size() == 1 ? kBegin : kNext).size()));
    for (std::string name; words >> name && name != "on" && name != "no";) {
      if (name == "use_cfg_parallel") {
        advised.use_cfg_parallel = true;
        continue;
      }
      int64_t value = 0;
      words >> value;
      if (name == "split_scheme") {
        words >> name;
        advised.split_scheme = SplitScheme::k2d;
        continue;
      }
      for (const Degree& degree : kDegrees) {
        if (name == degree.name) advised.*degree.value = value;
      }
    }
  }
  return all;
}

// On a small model every combination of degrees up to 5 is either accepted or answered with degrees that are
// accepted.
TEST(Layout, AdviceIsValid) {
  const Workload small{.heads = 3, .blocks = 4, .token_rows = 4, .steps = 2, .pictures = 2, .guided = true};
  int64_t pairs = 0;
  for (const int64_t dp : {1, 3}) {
    for (const bool cfg : {false, true}) {
      for (const int64_t pp : {1, 5}) {
        for (const int64_t ring : {1, 2, 5}) {
          for (const int64_t ulysses : {1, 4}) {
            for (const int64_t tp : {1, 3}) {
              for (const int64_t gather : {1, 3}) {
                const std::string line = refusal(degrees(dp, cfg, pp, ring, ulysses, tp, gather), small);
                if (line.empty()) continue;
                const std::vector<ParallelOptions> advised = advised_in(line);
                ASSERT_FALSE(advised.empty()) << line;
                for (const ParallelOptions& each : advised) EXPECT_EQ(refusal(each, small), "") << line;
                pairs += advised.size() == 2 ? 1 : 0;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GE(pairs, 20);
}

TEST(Layout, AdviceKeepsTheMethodsOfTheWish) {
  const Workload shapes{.heads = 3, .blocks = 6, .token_rows = 8, .steps = 20, .pictures = 1, .guided = true};
  const auto advice = [&](const ParallelOptions& wish, std::optional<int64_t> world = {}) {
    const std::string line = refusal(wish, shapes, world);
    return line.substr(std::min(line.size(), line.find("nearest valid: ")));
  };
  EXPECT_EQ(advice(degrees(1, false, 1, 1, 7, 1)),
            "nearest valid: ulysses_degree 3 on 3 ranks, or ring_degree 7 on 7 ranks");
  EXPECT_EQ(advice(degrees(1, false, 1, 1, 7, 1), 7), "nearest valid: ring_degree 7 on 7 ranks");
  EXPECT_EQ(
      advice(degrees(1, false, 64, 1, 1, 1)),
      "nearest valid: pipefusion_parallel_degree 6 on 6 ranks, or pipefusion_parallel_degree 4 ring_degree 8 "
      "tensor_parallel_degree 2 on 64 ranks");
  // The advice adds no method that would change the picture.
  EXPECT_EQ(advice(degrees(1, false, 1, 100, 1, 1)),
            "nearest valid: ring_degree 8 on 8 ranks, or use_cfg_parallel ring_degree 8 "
            "tensor_parallel_degree 3 on 48 "
            "ranks");
  EXPECT_EQ(advice(degrees(1, false, 1, 1, 1, 1, 100)),
            "nearest valid: kv_gather_degree 8 on 8 ranks, or use_cfg_parallel kv_gather_degree 8 "
            "tensor_parallel_degree 3 on 48 ranks");
  EXPECT_EQ(advice(degrees(1, false, 1, 5, 3, 1)),
            "nearest valid: ring_degree 2 ulysses_degree 3 on 6 ranks, or ring_degree 5 "
            "tensor_parallel_degree 3 on 15 ranks");
  EXPECT_EQ(advice(degrees(3, false, 1, 1, 1, 1)), "nearest valid: tensor_parallel_degree 3 on 3 ranks");
  ParallelOptions both = degrees(1, false, 1, 1, 2, 1);
  both.displaced_patch_degree = 4;
  EXPECT_EQ(advice(both),
            "nearest valid: displaced_patch_degree 4 on 4 ranks, or displaced_patch_degree 4 "
            "tensor_parallel_degree 2 on 8 ranks");
}

TEST(Layout, AdviceSplitsOverASquareWhereTheWishDoes) {
  ParallelOptions wish = degrees(1, false, 1, 1, 1, 6);
  wish.split_scheme = SplitScheme::k2d;
  const Workload four{.heads = 4, .blocks = 6, .token_rows = 8, .steps = 20, .pictures = 1};
  EXPECT_EQ(refusal(wish, four, {}),
            "[parallel] tensor_parallel_degree 6 needs a head for each rank, the model has 4; nearest valid: "
            "tensor_parallel_degree 4 split_scheme 2d on 4 ranks, or ring_degree 2 tensor_parallel_degree 3 "
            "on 6 ranks");
}

// Ulysses ranks of an axial model need a head each, or a frame.
TEST(Layout, AdviceKnowsOfFrames) {
  const Workload video{
      .heads = 3, .blocks = 28, .token_rows = 8, .token_frames = 5, .axial_attention = true, .steps = 30};
  ParallelOptions many = degrees(1, false, 1, 1, 16, 1);
  const auto has = [&](const char* text) { return refusal(many, video).find(text) != std::string::npos; };
  EXPECT_TRUE(has("16 needs a head or a frame of latents for each rank, there are 3 and 5;"));
  EXPECT_TRUE(has("nearest valid: ulysses_degree 5 on 5 ranks"));
  many.dynamic_sequence_parallel = false;
  EXPECT_TRUE(has("nearest valid: ulysses_degree 3 on 3 ranks"));
}

}  // namespace
}  // namespace tessera::parallel
