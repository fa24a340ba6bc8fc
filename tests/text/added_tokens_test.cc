#include "text/added_tokens.h"

#include <gtest/gtest.h>

namespace tessera::text {
namespace {

TEST(AddedTokens, TheLeftmostWinsAndOfThoseTheLongest) {
  AddedTokens tokens;
  tokens.add("<a>", 1);
  tokens.add("<a>bc", 2);
  tokens.add("<a>b", 3);
  tokens.add("b<a>", 4);
  std::vector<std::pair<int64_t, std::string>> parts;  // -1: between tokens
  tokens.split("x<a>bcd<a>b<a><a>b y", [&](std::optional<int64_t> id, std::string_view part) {
    parts.emplace_back(id.value_or(-1), part);
  });
  const std::vector<std::pair<int64_t, std::string>> expected = {
      {-1, "x"}, {2, "<a>bc"}, {-1, "d"}, {3, "<a>b"}, {1, "<a>"}, {3, "<a>b"}, {-1, " y"}};
  EXPECT_EQ(parts, expected);
}

}  // namespace
}  // namespace tessera::text
