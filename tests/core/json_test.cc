#include "core/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"

namespace tessera {
namespace {

// Returns the message of the input error that `function` throws.
template <typename Function>
std::string refusal(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "accepted";
}

TEST(Json, ReadsBareNumbersOnlyAsValues) {
  const Json json =
      parse_json(R"({"a": NaN, "b": [Infinity, -Infinity], "NaN": "Infinity", "c": "\"NaN"})", "file");
  EXPECT_TRUE(std::isnan(json["a"].get<double>()));
  EXPECT_EQ(json["b"][0].get<double>(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(json["b"][1].get<double>(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(json["NaN"], "Infinity");
  EXPECT_EQ(json["c"], "\"NaN");
}

// Nothing in a string is taken for a number, whatever else the document holds.
TEST(Json, TextsStayTexts) {
  for (const char* text : {R"(["\u0001number:x", "NaN", NaN])", R"(["\u0001number:NaN", "Infinity"])"}) {
    const Json json = parse_json(text, "file");
    EXPECT_TRUE(json[0].is_string()) << text << " " << json[0];
    EXPECT_TRUE(json[1].is_string()) << text;
  }
  EXPECT_EQ(parse_json(R"({"\u0001number:NaN": [NaN]})", "file").begin().key(), "\x01number:NaN");
}

// Each bare word is found again among the numbers around it.
TEST(Json, BareNumbersStandBetweenOthers) {
  const Json json = parse_json(
      R"([0, -1, 2.5, 1e3, "3", "\\", "\" NaN", NaN, true, null, 0, [-0.0, Infinity], {"0": -Infinity}, 4])",
      "file");
  EXPECT_TRUE(std::isnan(json[7].get<double>()));
  EXPECT_EQ(json[10], 0);
  EXPECT_TRUE(json[10].is_number_unsigned());
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(json[11], Json::array({-0.0, infinity}));
  EXPECT_EQ(json[12]["0"], -infinity);
  EXPECT_EQ(json[13], 4);
}

class JsonRefuses : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(JsonRefuses, WithAMessage) {
  const auto& [text, message] = GetParam();
  const std::string got = refusal([&text = text] { parse_json(text, "file"); });
  EXPECT_NE(got.find(message), std::string::npos) << got;
  EXPECT_EQ(got.find('\n'), std::string::npos) << got;
}

INSTANTIATE_TEST_SUITE_P(
    Texts, JsonRefuses,
    ::testing::Values(std::pair("", "[file] not valid JSON: line 1, column 1: "),
                      std::pair("{\"a\": 1,\n", "[file] not valid JSON: line 2, column 1: "),
                      std::pair("{NaN: 1}", "line 1, column 2: syntax error while parsing object key"),
                      std::pair("[NaNa]", "line 1, column 2"),
                      std::pair("[NaN, Infinity, x]", "line 1, column 17"),
                      std::pair("[NaN 1]", "line 1, column 6"), std::pair("[- Infinity]", "column 3"),
                      std::pair("[+Infinity]", "column 2"),
                      std::pair("[InfinityInfinity]", "line 1, column 2"), std::pair("[\"\xff\"]", "UTF-8"),
                      std::pair(std::string(101, '[') + std::string(101, ']'),
                                "nested deeper than 100 levels"),
                      std::pair("[1e999]", "not valid JSON: byte 6: number overflow")));

TEST(Json, NestsAHundredLevels) {
  EXPECT_TRUE(parse_json(std::string(100, '[') + std::string(100, ']'), "file").is_array());
}

TEST(JsonConfig, AnswersWithTheDefaultForWhatIsAbsent) {
  const JsonConfig config(Json::object(), "file");
  EXPECT_FALSE(config.has("x"));
  EXPECT_EQ(config.integer("x", 3), 3);
  EXPECT_EQ(config.number("x", 0.5), 0.5);
  EXPECT_EQ(config.boolean("x", true), true);
  EXPECT_EQ(config.string("x", "y"), "y");
  EXPECT_EQ(config.integers("x", std::vector<int64_t>{1, 2}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(config.strings("x", std::vector<std::string>{"y"}), std::vector<std::string>{"y"});
  EXPECT_EQ(refusal([&] { config.integer("x"); }), "[file] 'x' must be an integer, but it is missing");
  EXPECT_EQ(refusal([&] { config.boolean("x"); }), "[file] 'x' must be true or false, but it is missing");
}

// As Python code finds it in a config.
TEST(JsonConfig, NullIsFalseAndElseRefusedUnlessItStandsForTheDefault) {
  const JsonConfig config(Json{{"x", nullptr}}, "file");
  EXPECT_FALSE(config.has("x"));
  EXPECT_EQ(config.boolean("x", true), false);
  EXPECT_EQ(config.boolean("x"), false);
  EXPECT_EQ(config.integer("x", 3, Null::kDefault), 3);
  EXPECT_EQ(config.number("x", 0.5, Null::kDefault), 0.5);
  EXPECT_EQ(config.string("x", "y", Null::kDefault), "y");
  const std::string refused = "[file] 'x' must be ";
  EXPECT_EQ(refusal([&] { config.integer("x", 3); }), refused + "an integer, got null");
  EXPECT_EQ(refusal([&] { config.count("x", 9, 3); }), refused + "an integer, got null");
  EXPECT_EQ(refusal([&] { config.number("x", 0.5); }), refused + "a number, got null");
  EXPECT_EQ(refusal([&] { config.number_within("x", 0, 1, 0.5); }), refused + "a number, got null");
  EXPECT_EQ(refusal([&] { config.string("x", "y"); }), refused + "a string, got null");
  EXPECT_EQ(refusal([&] { config.integers("x", std::vector<int64_t>{1}); }),
            refused + "a list of integers, got null");
  EXPECT_EQ(refusal([&] { config.strings("x", std::vector<std::string>{"y"}); }),
            refused + "a list of strings, got null");
  EXPECT_EQ(refusal([&] { config.refuse("x", "why"); }), "[file] 'x' is null: why");
}

TEST(JsonConfig, ReadsWhatHasTheType) {
  const JsonConfig config(Json{{"i", -3},
                               {"f", 1.5},
                               {"b", false},
                               {"s", "x"},
                               {"l", {1, 2}},
                               {"n", {1, 0.5}},
                               {"w", {"a", "b"}},
                               {"one", 1},
                               {"whole", -1024.0},
                               {"wholes", {2.0, 3}}},
                          "file");
  EXPECT_EQ(config.integer("i"), -3);
  EXPECT_EQ(config.count("one", 9), 1);
  EXPECT_EQ(config.count("absent", 9, 7), 7);
  EXPECT_EQ(config.number("f"), 1.5);
  EXPECT_EQ(config.number("i"), -3);
  EXPECT_EQ(config.boolean("b"), false);
  EXPECT_EQ(config.string("s"), "x");
  EXPECT_EQ(config.integers("i"), std::vector<int64_t>{-3});
  EXPECT_EQ(config.integers("l"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(config.integer("whole"), -1024);
  EXPECT_EQ(config.integers("whole"), std::vector<int64_t>{-1024});
  EXPECT_EQ(config.integers("wholes"), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(config.numbers("n"), (std::vector<double>{1, 0.5}));
  EXPECT_EQ(config.strings("w"), (std::vector<std::string>{"a", "b"}));
}

TEST(JsonConfig, RefusesAnotherTypeAndWhatDoesNotFit) {
  const uint64_t too_large = uint64_t{1} << 63;
  const JsonConfig config(Json{{"f", 1.5},
                               {"u", too_large},
                               {"lu", {too_large}},
                               {"s", std::string(200, 'x')},
                               {"ten", 10},
                               {"inexact", 9007199254740992.0},
                               {"halves", {1, 1.5}},
                               {"zero", 0}},
                          "file");
  EXPECT_EQ(refusal([&] { config.integer("f"); }), "[file] 'f' must be an integer, got 1.5");
  EXPECT_EQ(refusal([&] { config.integer("inexact"); }),
            "[file] 'inexact' must be an integer, got 9007199254740992.0");
  EXPECT_EQ(refusal([&] { config.integers("halves"); }),
            "[file] 'halves' must be a list of integers, got [1,1.5]");
  EXPECT_EQ(refusal([&] { config.integer("u"); }), "[file] 'u' must be an integer, got 9223372036854775808");
  EXPECT_EQ(refusal([&] { config.count("u", 9); }), "[file] 'u' must be an integer, got 9223372036854775808");
  EXPECT_EQ(refusal([&] { config.count("ten", 9); }), "[file] 'ten' must be an integer from 1 to 9, got 10");
  EXPECT_EQ(refusal([&] { config.count("zero", 9, 1); }),
            "[file] 'zero' must be an integer from 1 to 9, got 0");
  EXPECT_EQ(refusal([&] { config.integers("lu"); }),
            "[file] 'lu' must be a list of integers, got [9223372036854775808]");
  EXPECT_EQ(refusal([&] { config.boolean("f"); }), "[file] 'f' must be true or false, got 1.5");
  EXPECT_EQ(refusal([] { JsonConfig(parse_json("{\"x\": NaN}", "file"), "file").integer("x"); }),
            "[file] 'x' must be an integer, got nan");
  EXPECT_LT(refusal([&] { config.number("s"); }).size(), 130U);  // long values are cut
  EXPECT_EQ(refusal([] { JsonConfig(Json::array(), "file"); }), "[file] expected a JSON object");
}

TEST(JsonConfig, RangesHaveTwoEnds) {
  const JsonConfig config(parse_json(R"({"low": -0.1, "in": 0.5, "high": 1.5, "nan": NaN})", "file"), "file");
  EXPECT_EQ(config.number_within("in", 0, 1), 0.5);
  EXPECT_EQ(config.number_within("absent", 0, 1, 0.25), 0.25);
  for (const char* key : {"low", "high", "nan"}) {
    const std::string message = refusal([&] { config.number_within(key, 0, 1); });
    EXPECT_NE(message.find(fmt::format("'{}' must be a number from 0 to 1", key)), std::string::npos)
        << message;
  }
  for (const char* key : {"none", "many"})
    EXPECT_NE(refusal([&] { config.count(key, 8); }), "accepted") << key;
}

TEST(JsonConfig, KnowsWhatNobodyAskedFor) {
  const JsonConfig config(
      parse_json(R"({"a": 1, "b": null, "c": false, "d": {"e": 1, "f": {"g": 2}, "h": 3}, "i": 4, "j": []})",
                 "file"),
      "file");
  EXPECT_EQ(config.unread(), (std::vector<std::string>{"a", "d", "i", "j"}));
  const JsonConfig copy = config;
  EXPECT_EQ(copy.integer("a"), 1);
  EXPECT_FALSE(config.has("b"));
  const JsonConfig inner = config.object("d");
  EXPECT_EQ(inner.where(), "file: d");
  EXPECT_EQ(config.unread(), (std::vector<std::string>{"d.e", "d.f", "d.h", "i", "j"}));
  EXPECT_EQ(config.object("d").integer("e"), 1);
  EXPECT_EQ(config.object("d").object("f").integer("g"), 2);
  EXPECT_EQ(config.with({{"i", 5}, {"new", 6}}).integer("i"), 5);
  EXPECT_EQ(config.unread(), (std::vector<std::string>{"d.h", "j"}));
  EXPECT_TRUE(config.value("j")->empty());
  EXPECT_EQ(config.unread(), (std::vector<std::string>{"d.h"}));
  EXPECT_EQ(config.value("absent"), nullptr);
  EXPECT_TRUE(config.object("absent").values().empty());
  EXPECT_EQ(refusal([&] { config.object("a"); }), "[file] 'a' must be an object, got 1");
}

}  // namespace
}  // namespace tessera
