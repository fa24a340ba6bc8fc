#include "media/file_text.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "media/still_image.h"
#include "media/video_writer.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/moving_frames.h"

namespace tessera::media {
namespace {

const std::string kSettingsText = R"({"prompt": "a café\ntessera: {}", "steps": 20})";
const ImageText kTextOfFile = {{"parameters", "a caf\u00e9\ntessera: {}\nSteps: 20"},
                               {"tessera", kSettingsText},
                               {"Software", "Tessera 1"}};

class FileTextTest : public FolderFixture {
 protected:
  std::string video(const std::string& name, const ImageText& text) const {
    VideoWriter writer(folder_ / name, {.height = 16, .width = 16, .text = text});
    for (int64_t i = 0; i < 2; ++i) writer.write(moving_frame(16, 16, i).pixels);
    writer.commit();
    return read_file(folder_ / name, 1 << 20);
  }

  static std::optional<FileText> read(const std::string& bytes) {
    return read_file_text(memory_source(std::as_bytes(std::span(bytes))), "bytes");
  }
};

TEST_F(FileTextTest, IsFoundInEveryKind) {
  const Image image = moving_frame(16, 16, 0);
  for (const auto& [kind, bytes] :
       {std::pair<std::string, std::string>{"PNG", encode_png(image, kTextOfFile)},
        {"JPEG", encode_image("a.jpg", image, kTextOfFile)},
        {"WebP", encode_image("a.webp", image, kTextOfFile)},
        {"MP4", video("a.mp4", kTextOfFile)},
        {"WebM", video("a.webm", kTextOfFile)}}) {
    const auto found = read(bytes);
    ASSERT_TRUE(found.has_value()) << kind;
    EXPECT_EQ(found->kind, kind);
    EXPECT_EQ(found->settings, kSettingsText) << kind;
  }
}

TEST_F(FileTextTest, IsMissingWhereThereIsNone) {
  const Image image = moving_frame(16, 16, 0);
  for (const std::string& bytes :
       {encode_png(image), encode_png(image, {{"parameters", "a"}}), video("a.mp4", {}),
        video("a.webm", {{"parameters", "a"}}), video("a.gif", {})})
    EXPECT_EQ(read(bytes).value().settings, std::nullopt);
  EXPECT_FALSE(read(video("a.gif", {})).value().may_have_settings);
  for (const std::string& bytes : {std::string(), std::string("{\"prompt\": \"a\"}"), std::string("RIFF")})
    EXPECT_FALSE(read(bytes).has_value());
}

// Pixels are not looked at, and a text may stand behind them.
TEST_F(FileTextTest, OfAPngNeedsNoPixels) {
  const std::string png = encode_png(moving_frame(16, 16, 0), kTextOfFile);
  const size_t pixels = png.find("IDAT") - 4, end = png.find("IEND") - 4;
  std::string damaged = png;
  damaged[pixels + 20] = static_cast<char>(~damaged[pixels + 20]);
  EXPECT_EQ(read(damaged).value().settings, kSettingsText);
  const size_t header = 33;  // signature and first chunk
  const std::string behind = png.substr(0, header) + png.substr(pixels, end - pixels) +
                             png.substr(header, pixels - header) + png.substr(end);
  EXPECT_EQ(read(behind).value().settings, kSettingsText);
  for (const size_t length : {size_t{9}, size_t{20}, size_t{40}}) {
    try {
      EXPECT_EQ(read(png.substr(0, length)).value().settings, std::nullopt);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
    }
  }
}

}  // namespace
}  // namespace tessera::media
