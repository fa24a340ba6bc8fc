#include "models/clip.h"

#include <gtest/gtest.h>

#include <numeric>

#include "comm/collectives.h"
#include "core/error.h"
#include "models/loading.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"

namespace tessera::models {
namespace {

class CLIPGolden : public ::testing::TestWithParam<const char*> {
 protected:
  CLIPTextEncoder load(at::ScalarType dtype, const comm::TensorGroups& groups = {}) {
    const std::filesystem::path folder = golden_folder(GetParam());
    LoadOptions options;
    options.placement.dtype = dtype;
    options.placement.groups = groups;
    PartFiles files(folder, weights::Library::kTransformers, options);
    return {files.scope(), CLIPTextConfig(JsonConfig::read(folder / "config.json"))};
  }
  std::vector<int64_t> ids(int64_t row) {
    const at::Tensor all = golden_.at("ids")[row].contiguous();
    return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
  }
  void expect(const at::Tensor& got, const std::string& name) {
    EXPECT_LE(relative_error(got, golden_.at(name)), kComponentTolerance) << name;
  }

  std::map<std::string, at::Tensor> golden_ =
      read_golden(std::string(GetParam()) + "/golden/golden.safetensors");
};

TEST_P(CLIPGolden, EqualsTransformersInFp32) {
  const CLIPTextEncoder encoder = load(at::kFloat);
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t skip = 0; skip < 3; ++skip) {
      const auto plain = encoder(ids(row), skip, /*normed=*/false);
      expect(plain.hidden, fmt::format("hidden.{}.{}", row, skip));
      expect(encoder(ids(row), skip, /*normed=*/true).hidden, fmt::format("normed.{}.{}", row, skip));
      EXPECT_EQ(plain.pooled.defined(), encoder.config().has_projection);
      if (plain.pooled.defined()) expect(plain.pooled, fmt::format("pooled.{}", row));
    }
    expect(encoder(ids(row), 0, /*normed=*/true).hidden, fmt::format("last.{}", row));
  }
}

TEST_P(CLIPGolden, IsAsNearTheTruthInBf16AsTransformers) {
  const CLIPTextEncoder encoder = load(at::kBFloat16);
  double own = 0, theirs = 0;
  for (int64_t row = 0; row < 2; ++row) {
    const std::string name = fmt::format("hidden.{}.1", row);
    const at::Tensor truth = golden_.at(name);
    own += (encoder(ids(row), 1, false).hidden.to(at::kFloat) - truth).square().sum().item<double>();
    theirs += (golden_.at(name + ".bf16") - truth).square().sum().item<double>();
  }
  EXPECT_LE(std::sqrt(own), 1.1 * std::sqrt(theirs));
}

// With more ranks than heads, every rank has the whole encoder.
TEST_P(CLIPGolden, IsTheSameOnManyRanks) {
  for (const int64_t ranks : {2, 3, 4}) {
    comm::run_ranks_as_threads(ranks, [&](comm::World world) {
      std::vector<int64_t> all(static_cast<size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      const comm::Group group = world.group(all, "replica");
      comm::connect(group, at::kCPU);
      expect(load(at::kFloat, {.inner = group, .outer = {}})(ids(1), 1, false).hidden, "hidden.1.1");
    });
  }
}

// Released text encoders have 2 as their end mark, for which transformers takes the largest id.
TEST(CLIPText, PoolsAtTheLargestIdWhereTheEndMarkIsTwo) {
  const std::filesystem::path folder = golden_folder("clip-projection");
  const auto golden = read_golden("clip-projection/golden/golden.safetensors");
  Json json = read_json(folder / "config.json");
  ASSERT_NE(json.at("eos_token_id"), 2);
  json["eos_token_id"] = 2;
  CLIPTextConfig config(JsonConfig(json, "config.json"));
  config.has_projection = true;
  weights::Checkpoint checkpoint(folder, weights::Library::kTransformers);
  const CLIPTextEncoder encoder(weights::Scope(checkpoint, {.dtype = at::kFloat}), config);
  for (int64_t row = 0; row < 2; ++row) {
    const at::Tensor all = golden.at("ids")[row].contiguous();
    const int64_t* const first = all.const_data_ptr<int64_t>();
    EXPECT_LE(relative_error(encoder({first, first + all.numel()}, 0, false).pooled,
                             golden.at(fmt::format("pooled.{}", row))),
              kComponentTolerance);
  }
}

TEST_P(CLIPGolden, RefusesTokensThatItDoesNotKnow) {
  EXPECT_THROW(load(at::kFloat)({40, 42, 41}, 0, true), Error);
}

INSTANTIATE_TEST_SUITE_P(Models, CLIPGolden, ::testing::Values("clip-quick", "clip-projection"));

}  // namespace
}  // namespace tessera::models
