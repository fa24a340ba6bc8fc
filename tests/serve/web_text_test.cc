#include "serve/web_text.h"

#include <gtest/gtest.h>

namespace tessera::serve {
namespace {

TEST(WebText, DecodesPercents) {
  EXPECT_EQ(decode_percent("a%20b%2Fc"), "a b/c");
  EXPECT_EQ(decode_percent("%C3%A9"), "é");
  EXPECT_EQ(decode_percent("a+b"), "a+b");
  for (const char* const wrong : {"%", "%2", "%zz", "%ff", "%00", "a%0Ab"})
    EXPECT_EQ(decode_percent(wrong), std::nullopt) << wrong;
}

TEST(WebText, ReadsQueries) {
  EXPECT_EQ(parse_query("a=1&b=x+y%26&a=2&flag&&=v"),
            (NamedTexts{{"a", "1"}, {"b", "x y&"}, {"a", "2"}, {"flag", ""}, {"", "v"}}));
  EXPECT_EQ(parse_query(""), NamedTexts());
  EXPECT_EQ(parse_query("a=%f"), std::nullopt);
}

constexpr const char* kType = "multipart/form-data; boundary=\"x y\"";

TEST(WebText, ReadsForms) {
  const std::string body =
      "before\r\n--x y\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na cat\r\n"
      "--x y  \r\ncontent-type: image/png\r\ncontent-disposition: form-data; name=\"image[]\"; "
      "filename=\"a;\\\"b.png\"\r\n"
      "\r\n\r\n--x\r\n\r\n--x y\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--x y--\r\nafter";
  const auto parts = parse_form(kType, body);
  ASSERT_TRUE(parts);
  ASSERT_EQ(parts->size(), 3U);
  EXPECT_EQ(parts->at(0).name, "prompt");
  EXPECT_EQ(parts->at(0).data, "a cat");
  EXPECT_EQ(parts->at(0).file_name, std::nullopt);
  EXPECT_EQ(parts->at(1).file_name, "a;\"b.png");
  EXPECT_EQ(parts->at(1).content_type, "image/png");
  EXPECT_EQ(parts->at(1).data, "\r\n--x\r\n");
  EXPECT_EQ(parts->at(2).name, "empty");
  EXPECT_EQ(parts->at(2).data, "");
  EXPECT_EQ(parse_form(kType, "--x y--")->size(), 0U);
}

TEST(WebText, RefusesDamagedForms) {
  const std::string good = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n";
  const std::string type = "multipart/form-data; boundary=b";
  ASSERT_TRUE(parse_form(type, good));
  for (size_t length = 0; length + 4 < good.size(); ++length)
    EXPECT_FALSE(parse_form(type, good.substr(0, length))) << length;
  for (const char* const wrong : {"text/plain", "multipart/form-data", "multipart/form-data; boundary=",
                                  "multipart/form-data; boundary=\"b", "multipart/mixed; boundary=b"})
    EXPECT_FALSE(parse_form(wrong, good)) << wrong;
  EXPECT_FALSE(parse_form(type, "--b\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\n1\r\n--b--"));
  EXPECT_FALSE(parse_form(type, "--b\r\nX: y\r\n\r\n1\r\n--b--"));
  EXPECT_FALSE(parse_form(type, "--b\r\n\r\n1\r\n--b--"));
}

}  // namespace
}  // namespace tessera::serve
