#include "models/stdit/video_settings.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "tests/support/golden.h"

namespace tessera::models {
namespace {

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
  const Json golden = read_json(golden_folder("open_sora_request.json"));
  for (const Json& each : golden.at("strategies"))
    EXPECT_EQ(parsed(each.at("text")), each.at("expected")) << each.at("text");
}

}  // namespace
}  // namespace tessera::models
