#include "media/still_image.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/error.h"
#include "media/exif.h"
#include "media/video_reader.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/moving_frames.h"

namespace tessera::media {
namespace {

// Colours that change slowly, as WebP has one for each two by two pixels.
Image colourful(int64_t height, int64_t width) {
  Image image{height, width, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (const int64_t value : {255 * y / height, 255 * x / width, 255 * (x + y) / (height + width)})
        image.pixels.push_back(static_cast<uint8_t>(value));
    }
  }
  return image;
}

ImageText text_with(const std::string& settings) {
  return {{"parameters", "a caf\u00e9 \U0001F600"}, {"Software", "tessera 1"}, {"tessera", settings}};
}

const std::string kSettings = R"({"prompt": "a café 😀", "steps": 20})";

class StillImageTest : public FolderFixture, public testing::WithParamInterface<const char*> {
 protected:
  std::string path() const { return (folder_ / GetParam()).string(); }
};

TEST_P(StillImageTest, IsReadBackWithItsColoursAndItsText) {
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{64, 48}, {33, 17}, {1, 1}, {40, 300}}) {
    const Image image = colourful(height, width);
    const std::string file = encode_image(path(), image, text_with(kSettings));
    EXPECT_EQ(exif_description(find_exif(file)), kSettings);
    std::ofstream(path(), std::ios::binary) << file;
    const auto read = VideoReader(path(), {}).next();
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->height, height);
    EXPECT_EQ(read->width, width);
    EXPECT_GT(psnr(*read, image), 32) << height << " x " << width;
  }
}

uint64_t number_at(const std::string& file, size_t at, size_t bytes, bool is_little) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes; ++i)
    number = number << 8 | static_cast<uint8_t>(file.at(at + (is_little ? bytes - 1 - i : i)));
  return number;
}

// Readers compare the sizes that a WebP's canvas and frame state, and count the bytes of its parts.
void expect_webp(const std::string& file, int64_t height, int64_t width) {
  const auto little = [&](size_t at, size_t bytes) { return number_at(file, at, bytes, true); };
  EXPECT_EQ(file.substr(0, 4) + file.substr(8, 8), "RIFFWEBPVP8X");
  EXPECT_EQ(little(4, 4), file.size() - 8);
  EXPECT_EQ(little(16, 4), 10U);
  EXPECT_EQ(little(20, 4), 8U);  // there is EXIF, and neither alpha nor animation
  EXPECT_EQ(little(24, 3), static_cast<uint64_t>(width - 1));
  EXPECT_EQ(little(27, 3), static_cast<uint64_t>(height - 1));
  std::string chunks;
  size_t at = 30;
  for (; at < file.size(); at += 8 + little(at + 4, 4) + little(at + 4, 4) % 2) {
    chunks += file.substr(at, 4);
    if (chunks != "VP8 ") continue;
    EXPECT_EQ(file.substr(at + 11, 3), "\x9d\x01\x2a");  // the start code of a key frame (RFC 6386, 9.1)
    EXPECT_EQ(little(at + 14, 2), static_cast<uint64_t>(width));
    EXPECT_EQ(little(at + 16, 2), static_cast<uint64_t>(height));
  }
  EXPECT_EQ(chunks, "VP8 EXIF");
  EXPECT_EQ(at, file.size());
}

// Each segment of a JPEG begins where the one before ends, up to the scan; one of them has the size.
void expect_jpeg(const std::string& file, int64_t height, int64_t width) {
  const auto big = [&](size_t at, size_t bytes) { return number_at(file, at, bytes, false); };
  EXPECT_EQ(big(0, 2), 0xFFD8U);
  EXPECT_EQ(big(file.size() - 2, 2), 0xFFD9U);
  EXPECT_EQ(big(2, 2), 0xFFE1U);  // EXIF comes first
  EXPECT_EQ(file.substr(6, 6), std::string("Exif\0\0", 6));
  size_t at = 2, sizes = 0;
  for (; big(at, 2) != 0xFFDA; at += 2 + big(at + 2, 2)) {
    ASSERT_EQ(big(at, 1), 0xFFU) << at;
    if (big(at, 2) < 0xFFC0 || big(at, 2) > 0xFFC3) continue;
    ++sizes;
    EXPECT_EQ(big(at + 5, 2), static_cast<uint64_t>(height));
    EXPECT_EQ(big(at + 7, 2), static_cast<uint64_t>(width));
  }
  EXPECT_EQ(sizes, 1U);
}

TEST_P(StillImageTest, StatesItsSizesAsOtherReadersWantThem) {
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{64, 48}, {33, 17}, {1, 1}, {40, 300}}) {
    const std::string file = encode_image(path(), colourful(height, width), text_with(kSettings));
    (path().ends_with("webp") ? expect_webp : expect_jpeg)(file, height, width);
  }
}

// Texts of all lengths, so that all values stand at odd places and at even ones.
TEST_P(StillImageTest, KeepsTextsOfAllLengths) {
  const Image image = colourful(8, 8);
  for (const std::string& settings :
       {std::string(), std::string("{}"), std::string(301, 'x'), std::string(60000, 'y')}) {
    const std::string file = encode_image(path(), image, text_with(settings));
    EXPECT_EQ(exif_description(find_exif(file)), settings);
    EXPECT_TRUE(!path().ends_with("webp") || file.size() % 2 == 0);  // as all of a RIFF file
  }
}

TEST_P(StillImageTest, ACutFileHasItsTextOrNone) {
  const std::string file = encode_image(path(), colourful(8, 8), text_with(kSettings));
  for (size_t length = 0; length < file.size(); ++length) {
    const auto description = exif_description(find_exif(file.substr(0, length)));
    EXPECT_TRUE(!description || *description == kSettings) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Names, StillImageTest, testing::Values("a.jpg", "a.jpeg", "a.JPG", "a.webp"),
                         [](const auto& info) { return "Of" + std::to_string(info.index); });

TEST(StillImage, IsRefusedBeforeThereIsOne) {
  const auto refusal = [](const std::string& path, int64_t height, int64_t width, const ImageText& text) {
    try {
      require_encodable(path, height, width, text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return std::string(error.what());
    }
    return std::string();
  };
  const ImageText none, long_text = text_with(std::string(70000, 'x'));
  EXPECT_EQ(refusal("a.webp", 16383, 16383, none), "");
  EXPECT_NE(refusal("a.webp", 16384, 8, none).find("at most 16383"), std::string::npos);
  EXPECT_EQ(refusal("a.webp", 8, 8, long_text), "");
  EXPECT_NE(refusal("a.jpg", 8, 8, long_text).find("a JPEG keeps at most 65527"), std::string::npos);
  EXPECT_EQ(refusal("a.png", 8, 8, long_text), "");
}

}  // namespace
}  // namespace tessera::media
