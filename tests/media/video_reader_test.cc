#include "media/video_reader.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/error.h"
#include "core/file.h"
#include "media/video_writer.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/moving_frames.h"

namespace tessera::media {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32;

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Reads all of it and returns the message of the Error(kInput) that it must end with.
std::string refusal(const fs::path& path, const ReadLimits& limits = {}) {
  try {
    VideoReader reader(path, limits);
    while (reader.next()) {
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with("[" + path.string() + "]")) << message;
    return message;
  }
  ADD_FAILURE() << path << " was read";
  return "";
}

class VideoReaderTest : public FolderFixture {
 protected:
  // A video of eight frames.
  std::string video(const std::string& suffix) const {
    const fs::path path = folder_ / ("whole" + suffix);
    VideoWriter writer(path, {.height = kSide, .width = kSide});
    for (int64_t i = 0; i < 8; ++i) writer.write(moving_frame(kSide, kSide, i).pixels);
    writer.commit();
    return read_file(path, 1 << 20);
  }
};

TEST_F(VideoReaderTest, ReadsImagesByTheirContents) {
  const Image image = moving_frame(9, 13, 2);
  write_bytes(folder_ / "image.jpg", encode_png(image));  // whatever its name
  VideoReader reader(folder_ / "image.jpg");
  EXPECT_EQ(reader.height(), 9);
  EXPECT_EQ(reader.width(), 13);
  EXPECT_EQ(reader.fps(), 0);
  EXPECT_EQ(reader.next(), image);
  EXPECT_EQ(reader.next(), std::nullopt);
}

// tests/golden/media has one image in each format, as PIL writes it, and the pixels that PIL reads.
TEST_F(VideoReaderTest, ReadsImagesAsPilDoes) {
  const auto golden = read_golden("media/images.safetensors");
  for (const auto& [name, bound] : {std::pair<std::string, double>{"grey.png", 100},
                                    {"palette.png", 100},
                                    {"alpha.png", 100},
                                    {"deep.png", 50},
                                    {"full.jpg", 55},
                                    {"halved.jpg", 45},
                                    {"grey.jpg", 55},
                                    {"lossy.webp", 45},
                                    {"lossless.webp", 100}}) {
    const at::Tensor& expected = golden.at(name);
    Image image{.height = expected.size(0), .width = expected.size(1), .pixels = {}};
    const auto* const pixels = expected.const_data_ptr<uint8_t>();
    image.pixels.assign(pixels, pixels + expected.numel());
    const Video read = read_video(golden_folder("media") / name, 2);
    ASSERT_EQ(read.frames.size(), 1U) << name;
    EXPECT_GT(psnr(read.frames[0], image), bound) << name;
  }
}

TEST_F(VideoReaderTest, StopsAtTheWantedNumberOfFrames) {
  for (const char* suffix : {".mp4", ".gif"}) {
    const std::string bytes = video(suffix);
    EXPECT_EQ(read_video(folder_ / (std::string("whole") + suffix), 3).frames.size(), 3U);
    VideoReader reader(std::as_bytes(std::span(bytes)), "bytes");
    int frames = 0;
    while (reader.next()) ++frames;
    EXPECT_EQ(frames, 8);
    EXPECT_EQ(reader.next(), std::nullopt);
  }
}

TEST_F(VideoReaderTest, RefusesWhatIsNoImageOrVideo) {
  EXPECT_NE(refusal(folder_ / "missing.mp4").find("no such file"), std::string::npos);
  EXPECT_NE(refusal(folder_).find("not a regular file"), std::string::npos);
  const fs::path path = folder_ / "a.mp4";
  write_bytes(path, "");
  EXPECT_NE(refusal(path).find("empty"), std::string::npos);
  write_bytes(path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 791656\n");
  EXPECT_NE(refusal(path).find("git-lfs"), std::string::npos);
  for (const std::string& bytes : {std::string("text"), std::string(5000, '\0'), std::string(5000, '\xFF')}) {
    write_bytes(path, bytes);
    refusal(path);
  }
}

TEST_F(VideoReaderTest, OpensNoOtherFiles) {
  write_bytes(folder_ / "other.png", encode_png(moving_frame(8, 8, 0)));
  const std::string other = (folder_ / "other.png").string();
  for (const std::string& list :
       {"ffconcat version 1.0\nfile '" + other + "'\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://" + other + "\n#EXT-X-ENDLIST\n"}) {
    write_bytes(folder_ / "a.mp4", list);
    EXPECT_NE(refusal(folder_ / "a.mp4").find("not an image or video"), std::string::npos);
  }
}

class DamagedVideo : public VideoReaderTest, public testing::WithParamInterface<std::string> {};

TEST_P(DamagedVideo, IsRefusedWhereverItIsCutOff) {
  const std::string bytes = video(GetParam());
  const fs::path path = folder_ / "cut";
  for (size_t part = 1; part < 20; ++part) {
    write_bytes(path, bytes.substr(0, bytes.size() * part / 20));
    refusal(path);
  }
  write_bytes(path, bytes.substr(0, bytes.size() - 1));
  refusal(path);
}

TEST_P(DamagedVideo, NeverDoesAnythingButRefuse) {
  const std::string bytes = video(GetParam());
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 40 + 1) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(~damaged[at]);
    try {
      VideoReader reader(std::as_bytes(std::span(damaged)), "bytes");
      while (reader.next()) {
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Suffixes, DamagedVideo, testing::Values(".mp4", ".webm", ".gif"));

TEST_F(VideoReaderTest, RefusesImagesThatAreCutOff) {
  for (const char* name : {"alpha.png", "full.jpg", "halved.jpg", "lossy.webp", "lossless.webp"}) {
    const std::string bytes = read_file(golden_folder("media") / name, 1 << 20);
    for (size_t part = 1; part < 8; ++part) {
      write_bytes(folder_ / name, bytes.substr(0, bytes.size() * part / 8));
      refusal(folder_ / name);
    }
  }
}

TEST_F(VideoReaderTest, RefusesFramesThatAreTooLarge) {
  write_bytes(folder_ / "a.png", encode_png(moving_frame(16, 40, 0)));
  EXPECT_NE(refusal(folder_ / "a.png", {.side = 32}).find("16 x 40 pixels"), std::string::npos);
  refusal(folder_ / "a.png", {.pixels = 600});
  for (const std::string suffix : {".mp4", ".webm", ".gif"}) {
    video(suffix);
    refusal(folder_ / ("whole" + suffix), {.side = kSide - 1});
    refusal(folder_ / ("whole" + suffix), {.pixels = kSide * kSide - 1});
  }
  // A few bytes that promise 3 GB of pixels.
  std::string bomb = encode_png(moving_frame(16, 16, 0));
  bomb.replace(16, 8, std::string("\x00\x00\x7f\xff\x00\x00\x7f\xff", 8));
  write_bytes(folder_ / "a.png", bomb);
  refusal(folder_ / "a.png");
}

}  // namespace
}  // namespace tessera::media
