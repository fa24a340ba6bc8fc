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
