#include "text/caption_cleaner.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"
#include "tests/support/golden.h"
#include "text/html_text.h"

namespace tessera::text {
namespace {

std::string refusal_of_caption(std::string_view caption) {
  try {
    clean_caption(caption);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(CaptionCleaner, CleansAsDiffusers) {
  const Json lines = read_json(golden_folder("captions") / "lines.json");
  EXPECT_GE(lines.size(), 1000U);
  for (const Json& line : lines) {
    const auto text = line["text"].get<std::string>();
    if (line["cleaned"].is_null()) {
      EXPECT_NE(refusal_of_caption(text), "") << text;
    } else {
      EXPECT_EQ(clean_caption(text), line["cleaned"].get<std::string>()) << text;
    }
  }
}

TEST(CaptionCleaner, CleansAsOpenSora) {
  const Json lines = read_json(golden_folder("captions") / "open_sora.json");
  EXPECT_GE(lines.size(), 50U);
  for (const Json& line : lines) {
    const auto text = line["text"].get<std::string>(), cleaned = line["cleaned"].get<std::string>();
    EXPECT_EQ(clean_caption(text, CaptionStyle::kOpenSora), cleaned) << text;
    EXPECT_NE(clean_caption(text), cleaned) << text;
  }
}

// ftfy's repair of such text is not ported: diffusers makes "d'or" of the first, "caf\u00e9" of the second.
TEST(CaptionCleaner, KeepsTextThatWasDecodedWronglyAndWarns) {
  std::vector<std::string> warnings;
  const LogSink before =
      set_log_sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  EXPECT_EQ(clean_caption("d\u00e2\u20ac\u02dcor"), "d\u00e2\u20ac\u02dcor");
  EXPECT_EQ(warnings.size(), 1U);
  clean_caption("a caf\u00c3\u00a9");
  EXPECT_EQ(warnings.size(), 2U);
  clean_caption("\u00d0\u00bf\u00d1\u20ac\u00d0\u00b8");  // Cyrillic
  EXPECT_EQ(warnings.size(), 3U);
  clean_caption("a \u00f0\u0178\u0161\u2014");  // a car
  EXPECT_EQ(warnings.size(), 4U);
  for (const char* usual :
       {"caf\u00e9 \u2014 na\u00efve", "CAF\u00c9\u2026", "\u00ab\u00c7a va\u00bb", "S\u00c3O", "\u20ac 5"})
    clean_caption(usual);
  EXPECT_EQ(warnings.size(), 4U);
  set_log_sink(before);
}

TEST(CaptionCleaner, SaysWhatItRefuses) {
  EXPECT_NE(refusal_of_caption("a\xff").find("not UTF-8"), std::string::npos);
  EXPECT_NE(refusal_of_caption("<![x]>").find("the name of a section"), std::string::npos);
  EXPECT_NE(refusal_of_caption(std::string(16'385, 'a')).find("16385 bytes"), std::string::npos);
  EXPECT_EQ(refusal_of_caption(std::string(16'384, 'a')), "");
  std::string like_addresses;
  for (int i = 0; i < 8192; ++i) like_addresses += "1.";
  EXPECT_NE(refusal_of_caption(like_addresses).find("too much time"), std::string::npos);
}

TEST(CaptionCleaner, ReadsEveryEntity) {
  ASSERT_NE(find_html_entity("eacute"), nullptr);
  EXPECT_EQ(find_html_entity("eacute")->text, U"\u00e9");
  EXPECT_TRUE(find_html_entity("eacute")->counts_without_semicolon);
  EXPECT_EQ(find_html_entity("zwnj")->text, U"\u200c");
  EXPECT_FALSE(find_html_entity("zwnj")->counts_without_semicolon);
  EXPECT_EQ(find_html_entity("acE")->text, U"\u223e\u0333");
  EXPECT_EQ(find_html_entity("AElig")->text, U"\u00c6");
  EXPECT_EQ(find_html_entity("Eacut"), nullptr);
  EXPECT_EQ(find_html_entity(""), nullptr);
}

// Some of these make rules or the reading of tags go over the rest of the text from each of its characters.
TEST(CaptionCleaner, EndsOnMonotonousText) {
  for (const std::string unit :
       {".",  "-",  "\"",     "a",  "<",    "&",  "@",   " ",      "1",      "#",      "\n",  "_",  "a-",
        "1.", "<a", "<a b='", "</", "<!--", "&#", "<b>", "\u00e9", "\u4e00", "\u0301", "\\n", "x1", "%e4"}) {
    std::string text;
    while (text.size() + unit.size() <= 4096) text += unit;
    EXPECT_EQ(refusal_of_caption(text), "") << unit;
  }
}

TEST(CaptionCleaner, TakesAnyText) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> byte(0, 255);
  for (int i = 0; i < 300; ++i) {
    std::string latin1;
    for (int length = byte(random); length > 0; --length) latin1 += static_cast<char>(byte(random));
    const std::string text = from_latin1(latin1);
    if (refusal_of_caption(text).empty()) {
      EXPECT_FALSE(find_invalid_utf8(clean_caption(text))) << text;
    }
  }
}

}  // namespace
}  // namespace tessera::text
