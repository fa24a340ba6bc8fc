#include "core/fields.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/text.h"

namespace tessera {
namespace {

enum class Color { kRed, kGreen };

struct Wish {
  bool flag = false;
  bool on = true;
  int64_t count = 1;
  int small = 0;
  std::optional<int64_t> height;
  std::optional<uint64_t> seed;
  std::optional<double> scale;
  std::string text = "none";
  std::vector<std::string> texts;
  std::vector<int64_t> numbers;
  std::optional<bool> maybe;
  Color color = Color::kRed;
  bool operator==(const Wish&) const = default;
};

const Fields<Wish>& wish_fields() {
  using W = Wish;
  static const Fields<W> fields = {
      plain_field(&W::flag, {"flag", "", {}}),
      plain_field(&W::on, {"use_on", "", {}}),
      plain_field(&W::count, {"count", "", {}, "N", 1, 5}),
      plain_field(&W::small, {"small", "", {}}),
      plain_field(&W::height, {"height", "", {}, "PIXELS", 1, 64}),
      plain_field(&W::seed, {"seed", "", {}}),
      plain_field(&W::scale, {"scale", "", {}, "SECONDS", 0.5}),
      plain_field(&W::text, {"text", "", {}}),
      plain_field(&W::texts, {"texts", "", {}}),
      plain_field(&W::numbers, {"numbers", "", {}, "N", 1, 9}),
      plain_field(&W::maybe, {"maybe", "", {}}),
      choice_field<W, Color, Color>(&W::color, {"color", "", {}},
                                    {{"red", Color::kRed}, {"green", Color::kGreen}})};
  return fields;
}

Wish read(const std::string& text) {
  return read_fields(wish_fields(), parse_json(text, "test"));
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(Fields, AreWrittenAndReadBack) {
  Wish wish;
  EXPECT_EQ(write_fields(wish_fields(), wish).dump(),
            R"({"flag":false,"use_on":true,"count":1,"small":0,"text":"none","color":"red"})");
  EXPECT_EQ(read("{}"), wish);
  wish = {
      true,     false,        5,      3,     64,           std::numeric_limits<uint64_t>::max(), 0.1 + 0.6,
      "\u00e9", {"a", "[b]"}, {1, 9}, false, Color::kGreen};
  EXPECT_EQ(read(write_fields(wish_fields(), wish).dump()), wish);
}

TEST(Fields, StateTheValuesThatTheyAllow) {
  std::vector<std::string> allowed;
  for (const FieldInfo& info : wish_fields()) allowed.push_back(allowed_values(info));
  const std::vector<std::string> expected = {"",
                                             "",
                                             "from 1 to 5",
                                             "",
                                             "from 1 to 64 pixels",
                                             "from 0 to 18446744073709551615",
                                             "0.5 seconds or more",
                                             "",
                                             "",
                                             "from 1 to 9",
                                             "",
                                             "red or green"};
  EXPECT_EQ(allowed, expected);
}

TEST(Fields, AreNotNamedByValues) {
  EXPECT_EQ(refusal(R"({"color": "\u000eheight\u000f"})"), "[color] expected red or green, got ' height '");
}

TEST(Fields, AreShownUpToTheEndOfACharacter) {
  const std::string cat = "\u732b";
  std::string text = "x";
  while (text.size() < 200) text += cat;
  const std::string shown = refusal(R"({"color": ")" + text + R"("})");
  EXPECT_NE(shown.find(text.substr(0, 79) + "...'"), std::string::npos) << shown;
  EXPECT_FALSE(find_invalid_utf8(shown)) << shown;
}

TEST(Fields, TakeTheOnlyElementOfAListAndNullForWhatIsLeftOut) {
  const Wish wish = read(R"({"texts": "one", "numbers": 7, "height": null, "seed": 0})");
  EXPECT_EQ(wish.texts, std::vector<std::string>{"one"});
  EXPECT_EQ(wish.numbers, std::vector<int64_t>{7});
  EXPECT_FALSE(wish.height);
  EXPECT_EQ(wish.seed, 0U);
}

TEST(Fields, OfAMemberAreFieldsOfTheWhole) {
  struct Whole {
    bool flag = false;
    Wish wish;
  };
  Fields<Whole> fields = {plain_field(&Whole::flag, {"whole", "help", FieldGroup::kPrompt})};
  add_fields(fields, &Whole::wish, wish_fields());
  const Json json = {{"whole", true}, {"count", 3}};
  Whole whole = read_fields(fields, json);
  EXPECT_TRUE(whole.flag);
  EXPECT_EQ(whole.wish.count, 3);
  EXPECT_EQ(write_fields(fields, whole).dump().find(R"({"whole":true,"flag":false,"use_on":true,"count":3,)"),
            0U);
  for (const Field<Whole>& each : fields) each.clear(whole);
  EXPECT_EQ(whole.wish, Wish());
}

TEST(Fields, RefuseWhatIsWrong) {
  const std::pair<const char*, const char*> rows[] = {
      {R"({"heigth": 3})", "[heigth] is not a known field; known fields are flag, use_on, count, "},
      {R"({"flag": 1})", "[flag] expected true or false, got 1"},
      {R"({"flag": null})", "[flag] expected true or false, got null"},
      {R"({"count": 1.5})", "[count] expected an integer, got 1.5"},
      {R"({"count": "1"})", "[count] expected an integer, got '1'"},
      {R"({"count": 18446744073709551615})", "[count] expected an integer, got 18446744073709551615"},
      {R"({"count": 0})", "[count] must be from 1 to 5, got 0"},
      {R"({"count": 6})", "[count] must be from 1 to 5, got 6"},
      {R"({"height": 65})", "[height] must be from 1 to 64 pixels, got 65"},
      {R"({"seed": -1})", "[seed] expected an integer from 0 to 18446744073709551615, got -1"},
      {R"({"seed": true})", "[seed] expected an integer from 0 to 18446744073709551615, got true"},
      {R"({"scale": NaN})", "[scale] must be a finite number, got nan"},
      {R"({"scale": 0.25})", "[scale] must be 0.5 seconds or more, got 0.25"},
      {R"({"scale": {"a": 1}})", R"([scale] expected a number, got {"a":1})"},
      {R"({"text": 3})", "[text] expected a text, got 3"},
      {R"({"text": null})", "[text] expected a text, got null"},
      {R"({"texts": ["a", 3]})", "[texts] expected a text, got 3"},
      {R"({"numbers": [[]]})", "[numbers] expected an integer, got []"},
      {R"({"numbers": [1, 10]})", "[numbers] must be from 1 to 9, got 10"},
      {R"({"color": "blue"})", "[color] expected red or green, got 'blue'"},
      {"[]", "[request] expected a JSON object, got []"}};
  for (const auto& [text, message] : rows)
    EXPECT_TRUE(refusal(text).starts_with(message)) << text << ": " << refusal(text);
  const Json bytes = {{"text", "a \xff"}};
  EXPECT_THROW(read_fields(wish_fields(), bytes), Error);
}

TEST(Fields, OfAStructAreChecked) {
  Wish wish;
  check_fields(wish_fields(), wish);
  wish.scale = std::nan("");
  EXPECT_THROW(check_fields(wish_fields(), wish), Error);
}

}  // namespace
}  // namespace tessera
