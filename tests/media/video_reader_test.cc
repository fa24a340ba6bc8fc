#include "media/video_reader.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <string>
#include <tuple>

#include "core/error.h"
#include "core/file.h"
#include "media/exif.h"
#include "media/still_image.h"
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

// tests/golden/media has one image in each format, as PIL writes it, and the pixels that PIL reads, of
// deep.png (grey of 16 bits, which PIL clips) the upper eight bits.
TEST_F(VideoReaderTest, ReadsImagesAsPilDoes) {
  const auto golden = read_golden("media/images.safetensors");
  for (const auto& [name, bound] : {std::pair<std::string, double>{"grey.png", 100},
                                    {"palette.png", 100},
                                    {"alpha.png", 100},
                                    {"deep.png", 100},
                                    {"deep-colours.png", 100},
                                    {"deep-colours-alpha.png", 100},
                                    {"deep-alpha.png", 100},
                                    {"full.jpg", 100},
                                    {"halved.jpg", 100},
                                    {"grey.jpg", 100},
                                    {"sharp-444.jpg", 100},
                                    {"sharp-422.jpg", 100},
                                    {"sharp-420.jpg", 100},
                                    {"sharp-411.jpg", 100},
                                    {"progressive-420.jpg", 100},
                                    {"arithmetic-420.jpg", 100},
                                    {"coarse-420.jpg", 100},
                                    {"inks.jpg", 100},
                                    {"inks-luma.jpg", 100},
                                    {"lossy.webp", 100},
                                    {"sharp.webp", 100},
                                    {"coarse.webp", 100},
                                    {"alpha.webp", 100},
                                    {"lossless.webp", 100},
                                    {"true-colour.bmp", 100},
                                    {"palette.bmp", 100}}) {
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
      EXPECT_NE(refusal(folder_ / name).find("the file is cut off: it has "), std::string::npos);
    }
    for (const size_t lost : {1, 2, 12}) {  // 12: the last chunk of a PNG
      write_bytes(folder_ / name, bytes.substr(0, bytes.size() - lost));
      EXPECT_NE(refusal(folder_ / name).find("the file is cut off: it has "), std::string::npos);
    }
    write_bytes(folder_ / name, bytes + "xxx");
    EXPECT_TRUE(VideoReader(folder_ / name).next()) << name;
  }
}

std::string golden_bytes(const char* name) {
  return read_file(golden_folder("media") / name, 1 << 20);
}

// libjpeg alone would guess what is missing.
TEST_F(VideoReaderTest, RefusesJpegsWhosePixelsAreDamaged) {
  const fs::path path = folder_ / "a.jpg";
  for (const auto& [name, reason] : {std::pair<const char*, const char*>{"full.jpg", "premature end of data"},
                                     {"grey.jpg", "premature end of data"},
                                     {"inks.jpg", "premature end of data"},
                                     {"progressive-420.jpg", "Premature end of input file"}}) {  // in a table
    const std::string bytes = golden_bytes(name);
    write_bytes(path, bytes.substr(0, bytes.size() * 3 / 4) + "\xFF\xD9");
    const std::string message = refusal(path);
    EXPECT_NE(message.find("cannot be read as a JPEG: "), std::string::npos) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  }
  std::string no_restarts = golden_bytes("sharp-411.jpg");
  for (const char mark : {'\xD0', '\xD1', '\xD2'}) {
    const size_t at = no_restarts.rfind(std::string("\xFF") + mark);
    ASSERT_NE(at, std::string::npos);
    no_restarts.erase(at, 2);
  }
  write_bytes(path, no_restarts);
  EXPECT_NE(refusal(path).find("cannot be read as a JPEG: Corrupt JPEG data: "), std::string::npos);
}

TEST_F(VideoReaderTest, RefusesJpegsThatAreCodedInOtherWays) {
  const fs::path path = folder_ / "a.jpg";
  std::string other = golden_bytes("full.jpg");
  other[other.find("\xFF\xC0") + 1] = '\xC5';  // differential
  write_bytes(path, other);
  EXPECT_NE(refusal(path).find("cannot be read as a JPEG: Unsupported JPEG process"), std::string::npos);
}

// Bytes between segments are common, and change no pixel.
TEST_F(VideoReaderTest, ReadsJpegsWithBytesBetweenSegments) {
  const std::string bytes = golden_bytes("full.jpg");
  std::string longer = bytes;
  longer.insert(longer.find("\xFF\xDB"), "xyz");
  EXPECT_EQ(VideoReader(std::as_bytes(std::span(longer)), "bytes").next(),
            VideoReader(std::as_bytes(std::span(bytes)), "bytes").next());
}

TEST_F(VideoReaderTest, RefusesFramesThatAreTooLarge) {
  write_bytes(folder_ / "a.png", encode_png(moving_frame(16, 40, 0)));
  EXPECT_NE(refusal(folder_ / "a.png", {.side = 32}).find("16 x 40 pixels"), std::string::npos);
  refusal(folder_ / "a.png", {.pixels = 600});
  const fs::path jpeg = golden_folder("media") / "full.jpg";
  EXPECT_NE(refusal(jpeg, {.side = 50}).find("40 x 56 pixels; at most 50 a side"), std::string::npos);
  refusal(jpeg, {.pixels = 40 * 56 - 1});
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

std::string big_endian_bytes(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

// Where a pixel of the corner of an image goes says how it is turned.
Image with_corner(int64_t height, int64_t width) {
  Image image{.height = height, .width = width, .pixels = std::vector<uint8_t>(height * width * 3, 20)};
  for (int64_t y = 0; y < height / 2; ++y) {
    for (int64_t x = 0; x < width / 4; ++x) {
      for (int64_t channel = 0; channel < 3; ++channel)
        image.pixels[static_cast<size_t>((y * width + x) * 3 + channel)] = 230;
    }
  }
  return image;
}

// "top left", "bottom right" and so on, with the size.
std::string place_of_corner(const Image& image) {
  const auto is_bright = [&](int64_t y, int64_t x) {
    return image.pixels[static_cast<size_t>((y * image.width + x) * 3)] > 128;
  };
  std::string place = std::to_string(image.height) + " x " + std::to_string(image.width);
  for (const auto& [name, y, x] : {std::tuple<const char*, int64_t, int64_t>{" top left", 1, 1},
                                   {" top right", 1, image.width - 2},
                                   {" bottom left", image.height - 2, 1},
                                   {" bottom right", image.height - 2, image.width - 2}}) {
    if (is_bright(y, x)) place += name;
  }
  // The corner is longer along one side.
  const int64_t quarter_of_rows = image.height * 3 / 8, quarter_of_columns = image.width * 3 / 8;
  for (const int64_t y : {quarter_of_rows, image.height - 1 - quarter_of_rows}) {
    if (is_bright(y, 1) || is_bright(y, image.width - 2)) place += " upright";
  }
  for (const int64_t x : {quarter_of_columns, image.width - 1 - quarter_of_columns}) {
    if (is_bright(1, x) || is_bright(image.height - 2, x)) place += " level";
  }
  return place;
}

TEST_F(VideoReaderTest, TurnsVideosByTheMatrixOfTheirTrack) {
  const fs::path path = folder_ / "a.mp4";
  {
    VideoWriter writer(path, {.height = 32, .width = 64});
    for (int i = 0; i < 2; ++i) writer.write(with_corner(32, 64).pixels);
    writer.commit();
  }
  const std::string bytes = read_file(path, 1 << 20);
  constexpr uint32_t kOne = 0x10000, kMinusOne = 0xFFFF0000;
  constexpr uint32_t kLittle = 3, kMinusLittle = 0xFFFFFFFD;  // where a program rounded cosines
  for (const auto& [a, b, c, d, expected] :
       {std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, const char*>{kOne, 0, 0, kOne,
                                                                        "32 x 64 top left upright"},
        {0, kOne, kMinusOne, 0, "64 x 32 top right level"},
        {kMinusOne, 0, 0, kMinusOne, "32 x 64 bottom right upright"},
        {0, kMinusOne, kOne, 0, "64 x 32 bottom left level"},
        {kMinusOne, 0, 0, kOne, "32 x 64 top right upright"},
        {0, kOne, kOne, 0, "64 x 32 top left level"},
        {kOne, kLittle, kMinusLittle, kOne, "32 x 64 top left upright"},
        {kLittle, kOne, kMinusOne, kMinusLittle, "64 x 32 top right level"}}) {
    std::string turned = bytes;
    constexpr size_t kMatrix = 44;  // behind the name of the box
    turned.replace(turned.find("tkhd") + kMatrix, 20,
                   big_endian_bytes(a) + big_endian_bytes(b) + big_endian_bytes(0) + big_endian_bytes(c) +
                       big_endian_bytes(d));
    VideoReader reader(std::as_bytes(std::span(turned)), "bytes");
    const std::optional<Image> frame = reader.next();
    ASSERT_TRUE(frame.has_value());
    EXPECT_EQ(reader.height(), frame->height);
    EXPECT_EQ(reader.width(), frame->width);
    EXPECT_EQ(place_of_corner(*frame), expected);
    EXPECT_EQ(reader.pixel_aspect(), 1);
  }
}

TEST_F(VideoReaderTest, KnowsTheShapeOfPixels) {
  const std::string bytes = video(".mp4");
  std::string wide = bytes;
  wide.replace(wide.find("pasp") + 4, 8, big_endian_bytes(4) + big_endian_bytes(3));
  EXPECT_DOUBLE_EQ(VideoReader(std::as_bytes(std::span(wide)), "bytes").pixel_aspect(), 4.0 / 3);
  std::string turned = wide;
  turned.replace(turned.find("tkhd") + 44, 20,
                 big_endian_bytes(0) + big_endian_bytes(0x10000) + big_endian_bytes(0) +
                     big_endian_bytes(0xFFFF0000) + big_endian_bytes(0));
  EXPECT_DOUBLE_EQ(VideoReader(std::as_bytes(std::span(turned)), "bytes").pixel_aspect(), 3.0 / 4);
}

// An EXIF block with one entry, as cameras write it, of either byte order.
std::string exif_of(char orientation, bool is_little) {
  using namespace std::string_literals;
  return is_little ? "II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"s + orientation + "\0\0\0\0\0\0\0"s
                   : "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"s + orientation + "\0\0\0\0\0\0"s;
}

TEST_F(VideoReaderTest, TurnsImagesByTheirExif) {
  const Image image = with_corner(32, 64);
  const ImageText none;
  std::string jpeg = encode_image("a.jpg", image, none), webp = encode_image("a.webp", image, none);
  jpeg.erase(2, 2 + (static_cast<unsigned char>(jpeg[4]) << 8 | static_cast<unsigned char>(jpeg[5])));
  const size_t exif_of_webp = webp.find("EXIF");
  const std::array<std::string, 9> places = {"",
                                             "32 x 64 top left upright",
                                             "32 x 64 top right upright",
                                             "32 x 64 bottom right upright",
                                             "32 x 64 bottom left upright",
                                             "64 x 32 top left level",
                                             "64 x 32 top right level",
                                             "64 x 32 bottom right level",
                                             "64 x 32 bottom left level"};
  for (size_t number = 1; number <= 8; ++number) {
    const char orientation = static_cast<char>(number);
    for (const bool is_little : {false, true}) {
      const std::string exif = exif_of(orientation, is_little);
      const std::string with_size = {static_cast<char>(exif.size()), 0, 0, 0};
      std::string riff = webp.substr(0, exif_of_webp);
      riff.append("EXIF").append(with_size).append(exif);
      riff[4] = static_cast<char>((riff.size() - 8) & 0xFF);
      riff[5] = static_cast<char>((riff.size() - 8) >> 8);
      std::string png = encode_png(image);
      constexpr size_t kHeader = 33;  // signature and first chunk
      png.insert(kHeader, big_endian_bytes(static_cast<uint32_t>(exif.size())) + "eXIf" + exif + "sum ");
      EXPECT_EQ(exif_orientation(find_exif(png)), orientation);
      for (const std::string& file : {jpeg_with_exif(jpeg, exif), riff}) {
        VideoReader reader(std::as_bytes(std::span(file)), "bytes");
        EXPECT_EQ(place_of_corner(reader.next().value()), places[number]);
      }
    }
  }
  EXPECT_EQ(exif_orientation(exif_of(9, true)), 9);
  EXPECT_EQ(orientation_of_exif(9), Orientation());
}

TEST_F(VideoReaderTest, SaysThatAnimatedWebpIsNotRead) {
  std::string webp = encode_image("a.webp", moving_frame(16, 16, 0), {});
  webp[20] = static_cast<char>(webp[20] | 2);
  write_bytes(folder_ / "a.webp", webp);
  EXPECT_NE(
      refusal(folder_ / "a.webp").find("an animated WebP, which is not read; convert it to an MP4 or a GIF"),
      std::string::npos);
}

TEST_F(VideoReaderTest, SkipsFramesAsItReadsThem) {
  const std::string bytes = video(".mp4");
  VideoReader all(std::as_bytes(std::span(bytes)), "bytes"), some(std::as_bytes(std::span(bytes)), "bytes");
  for (int i = 0; i < 8; ++i) {
    const std::optional<Image> frame = all.next();
    if (i % 3 == 1) {
      EXPECT_EQ(some.next(), frame) << i;
    } else {
      EXPECT_TRUE(some.skip()) << i;
    }
  }
  EXPECT_FALSE(some.skip());
  EXPECT_FALSE(some.next().has_value());
  VideoReader still(golden_folder("media") / "full.jpg");
  EXPECT_TRUE(still.skip());
  EXPECT_FALSE(still.skip());
}

}  // namespace
}  // namespace tessera::media
