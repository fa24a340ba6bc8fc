#include "engine/mask_strategy.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "core/error.h"
#include "core/json.h"
#include "tests/support/golden.h"

namespace tessera::engine {
namespace {

const Json& golden_of_strategies() {
  static const Json json = read_json(golden_folder("open_sora_request.json"));
  return json;
}

Json numbers(const GivenRange& range) {
  return {range.loop, range.reference, range.reference_start, range.target_start, range.length, range.edit};
}

// Null if the strategy is refused.
Json parsed(const std::string& text) {
  Json all = Json::array();
  try {
    for (const GivenRange& range : parse_mask_strategy(text, "mask_strategy")) all.push_back(numbers(range));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return nullptr;
  }
  return all;
}

TEST(MaskStrategy, IsReadAsByTheOracle) {
  for (const Json& each : golden_of_strategies().at("strategies"))
    EXPECT_EQ(parsed(each.at("text")), each.at("expected")) << each.at("text");
}

// Frames of the reference are 1, 2, ...; so what stands in the video says where each came from.
TEST(MaskStrategy, PlacesFramesAsTheOracle) {
  for (const Json& each : golden_of_strategies().at("placements")) {
    const auto number = [&](const char* key) { return each.at(key).get<int64_t>(); };
    const int64_t frames = number("target_frames"), all = number("reference_frames");
    const std::optional<int64_t> align =
        each.at("align").is_null() || number("align") == 0 ? std::nullopt : std::optional(number("align"));
    const std::vector<at::Tensor> references = {at::arange(1, all + 1, at::kFloat).view({1, all, 1, 1})};
    const GivenRange range{.reference_start = number("start"),
                           .target_start = number("target"),
                           .length = number("length"),
                           .edit = 0.25};
    at::Tensor z = at::zeros({1, frames, 1, 1}), placed = at::zeros({frames});
    if (each.at("expected").is_null()) {
      EXPECT_THROW(place_references({range}, 0, references, align, z, placed), Error) << each.dump();
      continue;
    }
    const at::Tensor mask = place_references({range}, 0, references, align, z, placed);
    const auto expected = each.at("expected").get<std::vector<int64_t>>();  // start, target, length
    at::Tensor wanted = at::zeros({frames});
    wanted.narrow(0, expected[1], expected[2])
        .copy_(at::arange(expected[0] + 1, expected[0] + expected[2] + 1, at::kFloat));
    EXPECT_TRUE(z.view({frames}).equal(wanted)) << each.dump();
    EXPECT_TRUE(placed.equal((wanted > 0).to(at::kFloat))) << each.dump();
    EXPECT_TRUE(mask.equal(at::where(wanted > 0, 0.25F, 1.0F).to(at::kFloat))) << each.dump();
  }
}

TEST(MaskStrategy, TakesTheLastReferenceForMinusOne) {
  at::Tensor z = at::zeros({1, 2, 1, 1}), placed = at::zeros({2});
  const std::vector<at::Tensor> references = {at::full({1, 1, 1, 1}, 3.0F), at::full({1, 1, 1, 1}, 5.0F)};
  place_references(parse_mask_strategy("0,-1;2,0", "f"), 0, references, std::nullopt, z, placed);
  EXPECT_EQ(z[0][0].item<float>(), 5);
  EXPECT_THROW(place_references(parse_mask_strategy("0,2", "f"), 0, references, {}, z, placed), Error);
  EXPECT_THROW(place_references(parse_mask_strategy("0,-3", "f"), 0, references, {}, z, placed), Error);
}

TEST(MaskStrategy, SaysHowManyFramesAReferenceHas) {
  at::Tensor z = at::zeros({1, 2, 1, 1}), placed = at::zeros({2});
  try {
    place_references(parse_mask_strategy("0,0,7", "f"), 0, {at::zeros({1, 1, 1, 1})}, {}, z, placed);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).ends_with(", which has 1 latent frame")) << error.what();
  }
}

}  // namespace
}  // namespace tessera::engine
