#include "media/video_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "core/error.h"
#include "core/file.h"
#include "media/libav/libav.h"
#include "media/video_reader.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/moving_frames.h"

namespace tessera::media {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHeight = 48, kWidth = 64, kFrames = 10;

class VideoWriterTest : public FolderFixture {
 protected:
  fs::path write(const std::string& name,
                 const VideoFormat& format = {.height = kHeight, .width = kWidth, .fps = 24},
                 int64_t frames = kFrames) const {
    VideoWriter writer(folder_ / name, format);
    for (int64_t i = 0; i < frames; ++i) writer.write(moving_frame(format.height, format.width, i).pixels);
    writer.commit();
    return folder_ / name;
  }
};

// A file as libav's own reading shows it, without our reader.
struct Track {
  Demuxer demuxer;
  const AVStream* stream = nullptr;
  int64_t packets = 0;
  std::string comment() const {
    const AVDictionaryEntry* const entry = av_dict_get(demuxer->metadata, "comment", nullptr, 0);
    return entry ? entry->value : "";
  }
};

Track probe(const fs::path& path) {
  Track track;
  AVFormatContext* made = nullptr;
  if (avformat_open_input(&made, path.c_str(), nullptr, nullptr) < 0)
    throw std::runtime_error("cannot open it");
  track.demuxer.reset(made);
  avformat_find_stream_info(made, nullptr);
  if (made->nb_streams != 1) throw std::runtime_error("not one track");
  track.stream = made->streams[0];
  const auto packet = owned<Packet>(av_packet_alloc());
  for (; av_read_frame(made, packet.get()) >= 0; av_packet_unref(packet.get())) ++track.packets;
  return track;
}

struct RoundTrip {
  std::string suffix;
  double psnr;  // the least of any frame; measured ones are about 2 dB higher
};

void PrintTo(const RoundTrip& each, std::ostream* out) {
  *out << each.suffix;
}

class VideoRoundTrip : public VideoWriterTest, public testing::WithParamInterface<RoundTrip> {};

TEST_P(VideoRoundTrip, ReadsBackWhatWasWritten) {
  const fs::path path = write("a" + GetParam().suffix);
  EXPECT_EQ(names(), std::vector<std::string>{path.filename()});
  const Video video = read_video(path, 100);
  ASSERT_EQ(video.frames.size(), static_cast<size_t>(kFrames));
  EXPECT_NEAR(video.fps, 24, GetParam().suffix == ".gif" ? 1.5 : 1e-3) << "a GIF has hundredths of a second";
  double least = 1000;
  for (int64_t i = 0; i < kFrames; ++i)
    least = std::min(least, psnr(video.frames[static_cast<size_t>(i)], moving_frame(kHeight, kWidth, i)));
  RecordProperty("psnr", std::to_string(least));
  EXPECT_GT(least, GetParam().psnr);
}

INSTANTIATE_TEST_SUITE_P(Suffixes, VideoRoundTrip,
                         testing::Values(RoundTrip{".mp4", 36}, RoundTrip{".webm", 36}, RoundTrip{".gif", 41},
                                         RoundTrip{".MP4", 36}));

#if defined(__GLIBC__)
// glibc fills what it allocates with the complement of this number.
TEST_F(VideoWriterTest, DoesNotDependOnWhatMemoryHeldBefore) {
  const VideoFormat format = {.height = 64, .width = 64, .fps = 24};
  std::vector<uint8_t> pixels(static_cast<size_t>(format.height * format.width * 3));
  for (const char* suffix : {".mp4", ".webm"}) {
    std::vector<std::string> files;
    for (const int number : {1, 85, 200}) {
      ::mallopt(M_PERTURB, number);
      const fs::path path = folder_ / fmt::format("{}{}", number, suffix);
      VideoWriter writer(path, format);
      for (int64_t frame = 0; frame < 17; ++frame) {
        auto pixel = pixels.begin();
        for (int64_t y = 0; y < format.height; ++y) {
          for (int64_t x = 0; x < format.width; ++x) {
            for (int64_t c = 0; c < 3; ++c) {
              *pixel++ = static_cast<uint8_t>((x / 8 * 37 + y / 8 * 91 + c * 50) % 128 +
                                              (x * y * (frame + 3) + c * frame * 17) % 64 + 2 * frame);
            }
          }
        }
        writer.write(pixels);
      }
      writer.commit();
      files.push_back(read_file(path, 1 << 20));
    }
    ::mallopt(M_PERTURB, 0);
    EXPECT_TRUE(files[0] == files[1] && files[0] == files[2]) << suffix;
  }
}
#endif

TEST_F(VideoWriterTest, AnMp4PlaysInBrowsers) {
  const fs::path path = write("a.mp4");
  const Track track = probe(path);
  const AVCodecParameters& codec = *track.stream->codecpar;
  EXPECT_EQ(codec.codec_id, AV_CODEC_ID_H264);
  EXPECT_EQ(codec.codec_tag, MKTAG('a', 'v', 'c', '1'));
  EXPECT_EQ(codec.profile & ~0xF00, 100) << "High, without flags";
  EXPECT_EQ(codec.format, AV_PIX_FMT_YUV420P);
  EXPECT_EQ(codec.width, kWidth);
  EXPECT_EQ(codec.height, kHeight);
  EXPECT_EQ(codec.color_range, AVCOL_RANGE_MPEG);
  EXPECT_EQ(codec.color_space, AVCOL_SPC_BT709);
  EXPECT_EQ(codec.color_primaries, AVCOL_PRI_BT709);
  EXPECT_EQ(codec.color_trc, AVCOL_TRC_BT709);
  EXPECT_EQ(track.packets, kFrames);
  EXPECT_EQ(track.stream->nb_frames, kFrames);
  EXPECT_EQ(track.stream->avg_frame_rate.num, 24);
  EXPECT_EQ(track.stream->avg_frame_rate.den, 1);
  EXPECT_NEAR(static_cast<double>(track.demuxer->duration) / AV_TIME_BASE, kFrames / 24.0, 1e-3);
  EXPECT_NEAR(static_cast<double>(track.demuxer->start_time) / AV_TIME_BASE, 0, 1e-3);
  const std::string bytes = read_file(path, 1 << 20);
  EXPECT_LT(bytes.find("moov"), bytes.find("mdat")) << "a browser reads the index first";
}

TEST_F(VideoWriterTest, AWebmHasVp9AndItsLength) {
  const Track track = probe(write("a.webm"));
  EXPECT_EQ(track.stream->codecpar->codec_id, AV_CODEC_ID_VP9);
  EXPECT_EQ(track.stream->codecpar->format, AV_PIX_FMT_YUV420P);
  EXPECT_EQ(track.stream->codecpar->color_space, AVCOL_SPC_BT709);
  EXPECT_EQ(track.packets, kFrames);
  EXPECT_NEAR(static_cast<double>(track.demuxer->duration) / AV_TIME_BASE, kFrames / 24.0, 0.02);
}

TEST_F(VideoWriterTest, AGifLoopsForEver) {
  const std::string bytes = read_file(write("a.gif"), 1 << 20);
  EXPECT_NE(bytes.find(std::string("NETSCAPE2.0\x03\x01\x00\x00", 15)), std::string::npos);
  EXPECT_EQ(probe(folder_ / "a.gif").packets, kFrames);
  EXPECT_THROW(write("b.gif", {.height = 8, .width = 8, .fps = 60}), Error);
}

TEST_F(VideoWriterTest, KeepsTheColoursOfAFlatFrame) {
  for (const char* name : {"a.mp4", "a.webm", "a.gif"}) {
    for (const std::array<uint8_t, 3> colour :
         {std::array<uint8_t, 3>{255, 0, 0}, {0, 90, 255}, {250, 240, 20}}) {
      Image flat{.height = 16, .width = 16, .pixels = {}};
      for (int i = 0; i < 16 * 16; ++i) flat.pixels.insert(flat.pixels.end(), colour.begin(), colour.end());
      VideoWriter writer(folder_ / name, {.height = 16, .width = 16});
      writer.write(flat.pixels);
      writer.write(flat.pixels);
      writer.commit();
      const Image read = read_video(folder_ / name, 1).frames.at(0);
      for (size_t i = 0; i < read.pixels.size(); ++i) ASSERT_NEAR(read.pixels[i], flat.pixels[i], 3) << name;
    }
  }
}

TEST_F(VideoWriterTest, PngFramesAreExactAndAppearTogether) {
  const VideoFormat format{.height = 5, .width = 7, .text = {{"prompt", "a circle"}}};
  {
    VideoWriter writer(folder_ / "a.png", format);
    for (int64_t i = 0; i < 3; ++i) writer.write(moving_frame(5, 7, i).pixels);
    for (const std::string& name : names()) EXPECT_TRUE(name.ends_with(".tmp")) << name;
  }
  EXPECT_TRUE(names().empty());
  write("a.png", format, 3);
  EXPECT_EQ(names(), (std::vector<std::string>{"a-0000.png", "a-0001.png", "a-0002.png"}));
  for (int64_t i = 0; i < 3; ++i) {
    const PngFile file = read_png(folder_ / ("a-000" + std::to_string(i) + ".png"));
    EXPECT_EQ(file.image, moving_frame(5, 7, i));
    EXPECT_EQ(file.text, format.text);
  }
  EXPECT_EQ(read_png(write("b.png", format, 1)).image, moving_frame(5, 7, 0))
      << "one frame has the name itself";
}

TEST_F(VideoWriterTest, KeepsTheText) {
  const VideoFormat format{
      .height = 16, .width = 16, .text = {{"prompt", "a caf\u00e9 \u732b"}, {"seed", "7"}}};
  for (const char* name : {"a.mp4", "a.webm"})
    EXPECT_EQ(probe(write(name, format, 2)).comment(), "prompt: a caf\u00e9 \u732b\nseed: 7") << name;
}

TEST_F(VideoWriterTest, OneFrameIsAVideoToo) {
  for (const char* name : {"a.mp4", "a.webm", "a.gif"})
    EXPECT_EQ(read_video(write(name, {.height = 16, .width = 16}, 1), 10).frames.size(), 1U) << name;
}

TEST_F(VideoWriterTest, HoldsFramesOfLongVideosOnlyEncoded) {
  VideoWriter writer(folder_ / "a.gif", {.height = 64, .width = 64});
  uintmax_t before = 0;
  for (int64_t i = 0; i < 30; ++i) writer.write(moving_frame(64, 64, i).pixels);
  for (const auto& entry : fs::directory_iterator(folder_)) before = entry.file_size();
  EXPECT_GT(before, 10'000U) << "a GIF grows as frames come";
}

TEST_F(VideoWriterTest, LeavesNothingIfItIsAbandonedOrFails) {
  const Image frame = moving_frame(kHeight, kWidth, 0);
  for (const std::string& suffix : video_suffixes()) {
    const fs::path path = folder_ / ("a" + suffix);
    const auto write_three = [&] {
      VideoWriter writer(path, {.height = kHeight, .width = kWidth});
      for (int64_t i = 0; i < 3; ++i) writer.write(moving_frame(kHeight, kWidth, i).pixels);
      return writer;
    };
    write_three();
    EXPECT_TRUE(names().empty()) << suffix;
    {
      const FileSizeLimit full(300);
      try {
        write_three().commit();
        FAIL() << suffix << " was written";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUsage);
        EXPECT_NE(std::string(error.what()).find(path.string() + "]"), std::string::npos) << error.what();
      }
    }
    EXPECT_TRUE(names().empty()) << suffix;
    EXPECT_THROW(VideoWriter(folder_ / "missing" / ("a" + suffix), {.height = 16, .width = 16}), Error);
  }
}

TEST_F(VideoWriterTest, RefusesWhatCannotBe) {
  EXPECT_THROW(VideoWriter(folder_ / "a.avi", {.height = 16, .width = 16}), Error);
  EXPECT_THROW(VideoWriter(folder_ / "a", {.height = 16, .width = 16}), Error);
  EXPECT_THROW(VideoWriter(folder_ / "a.mp4", {.height = 15, .width = 16}), Error);
  EXPECT_THROW(VideoWriter(folder_ / "a.webm", {.height = 16, .width = 15}), Error);
  EXPECT_TRUE(names().empty());
  EXPECT_EQ(read_video(write("a.gif", {.height = 15, .width = 13}, 2), 9).frames.size(), 2U);
  EXPECT_TRUE(is_video_path("b/c.WebM"));
  EXPECT_FALSE(is_video_path("mp4"));
}

TEST_F(VideoWriterTest, KeepsTheFrameRate) {
  for (const auto& [fps, rate] : {std::pair<double, AVRational>{8, {8, 1}},
                                  {12.5, {25, 2}},
                                  {23.976, {24000, 1001}},
                                  {24000.0 / 1001, {24000, 1001}},
                                  {24, {24, 1}},
                                  {29.97, {30000, 1001}},
                                  {59.94, {60000, 1001}}}) {
    const VideoFormat format{.height = 16, .width = 16, .fps = fps};
    const AVRational mp4 = probe(write("a.mp4", format, 4)).stream->avg_frame_rate;
    EXPECT_EQ(av_cmp_q(mp4, rate), 0) << fps << ": " << mp4.num << " / " << mp4.den;
    EXPECT_NEAR(av_q2d(probe(write("a.webm", format, 4)).stream->avg_frame_rate), av_q2d(rate), 1e-3);
  }
}

}  // namespace
}  // namespace tessera::media
