#include "core/text.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Counted, HasTheNumberOfTheNoun) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(2, "latent frame"), "2 latent frames");
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
  EXPECT_EQ(counted(3, "micro-batch"), "3 micro-batches");
}

// The examples of RFC 4648, section 10.
TEST(Base64, IsThatOfTheStandard) {
  const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"fooba", "Zm9vYmE="},
                                                          {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : examples) {
    EXPECT_EQ(encode_base64(bytes), text);
    EXPECT_EQ(decode_base64(text), bytes);
  }
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(decode_base64(encode_base64(all)), all);
  EXPECT_EQ(decode_base64("Zm9v\r\nYmFy"), "foobar");
  EXPECT_EQ(decode_base64("Zg"), "f");
  for (const char* const wrong : {"Z", "Zg=", "Zg===", "Z=g=", "Zh==", "Zm9v!", "Zm9-", "=", "===="})
    EXPECT_EQ(decode_base64(wrong), std::nullopt) << wrong;
}

}  // namespace
}  // namespace tessera
