#include "core/error.h"

#include <gtest/gtest.h>

#include "core/text.h"

namespace tessera {
namespace {

std::string as_option(const std::string& name, std::optional<bool> value) {
  return (value == false ? "--no-" : "--") + name;
}

TEST(FieldName, IsSpelledAsTheFrontEndSays) {
  const std::string message =
      field("height") + " 7 and " + field("shared_memory", false) + "; " + field("x", true);
  EXPECT_EQ(spell(message), "height 7 and shared_memory: false; x: true");
  EXPECT_EQ(spell(message, as_option), "--height 7 and --no-shared_memory; --x");
  EXPECT_EQ(spell("nothing at all", as_option), "nothing at all");
  EXPECT_EQ(spell(""), "");
  EXPECT_EQ(spell(field("a") + field("b"), as_option), "--a--b");
}

TEST(FieldName, ThatIsCutOffIsSpelledAllTheSame) {
  const std::string whole = "use " + field("height");
  EXPECT_EQ(spell(whole.substr(0, whole.size() - 1)), "use height");
  EXPECT_EQ(spell(whole.substr(0, 5)), "use ");
}

TEST(FieldName, IsNothingThatAUserWrites) {
  const std::string text = "'" + printable(field("height")) + "'";
  EXPECT_EQ(spell(text, as_option), "' height '");
  EXPECT_TRUE(fields_in(text).empty());
}

TEST(FieldName, StandsInErrors) {
  try {
    usage_error(field("height"), "too small; or lower {} and {}", field("width"), field("height"));
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[height] too small; or lower width and height");
    EXPECT_EQ(spell(error.message(), as_option), "[--height] too small; or lower --width and --height");
    EXPECT_EQ(fields_in(error.message()), (std::vector<std::string>{"height", "width"}));
  }
}

}  // namespace
}  // namespace tessera
