#include "serve/encoder.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/image.h"
#include "job/outputs.h"
#include "job/report.h"
#include "media/video_reader.h"
#include "media/video_writer.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/moving_frames.h"
#include "tests/support/tiny_open_sora.h"

namespace tessera::serve {
namespace {

constexpr int64_t kHeight = 32, kWidth = 48, kFrames = 17;

// An encoder, whose calls back are made by wait().
class EncoderTest : public FolderFixture {
 protected:
  void SetUp() override {
    base_.model = engine::tiny_video();
    base_.arguments.request.dtype = at::kFloat;
    encoder_ = std::make_unique<Encoder>(base_, folder_ / "encoder", [this](std::function<void()> call) {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
      changed_.notify_one();
    });
  }

  Encoder::Picture picture(const std::string& suffix, int64_t frames = kFrames, int64_t index = 0,
                           const std::string& job = "job") const {
    engine::Request request;
    request.prompts = {"a disc moves"};
    request.height = kHeight;
    request.width = kWidth;
    request.seed = 1;
    request.dtype = at::kFloat;
    request.num_images_per_prompt = 2;
    request.video.num_frames = frames;
    return {.job = job,
            .request = engine::resolve(request, base_.model).request,
            .index = index,
            .suffix = suffix};
  }
  // Frames of a video in which picture `index` moves otherwise than the others.
  static VideoFrames frames(int64_t first, int64_t count, int64_t total = kFrames, int64_t index = 0) {
    VideoFrames frames{
        .first = first, .count = count, .total = total, .height = kHeight, .width = kWidth, .fps = 24};
    for (int64_t i = 0; i < count; ++i) {
      const Image image = moving_frame(kHeight, kWidth, first + i + 5 * index);
      frames.pixels.append(image.pixels.begin(), image.pixels.end());
    }
    return frames;
  }
  void add(const Encoder::Picture& picture, VideoFrames frames) {
    encoder_->add_frames(picture, std::move(frames), [this](Encoder::Made made) { made_.push_back(made); });
  }
  // What has been made, when the encoder has done all that it was given.
  std::vector<Encoder::Made> wait() {
    bool is_done = false;
    encoder_->run([&] {
      const std::lock_guard lock(mutex_);
      is_done = true;
      changed_.notify_one();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done; });
    for (const auto& call : std::exchange(calls_, {})) call();
    return std::exchange(made_, {});
  }
  static std::string file_of(const Encoder::Made& made) {
    const auto* file = std::get_if<Encoder::File>(&made);
    if (file == nullptr) ADD_FAILURE() << std::get<std::string>(made);
    return file == nullptr ? "" : *file->bytes;
  }
  // As `tessera generate` writes it, all frames at once.
  std::string written(const Encoder::Picture& picture) const {
    const std::filesystem::path path = folder_ / ("written" + picture.suffix);
    const engine::Settings settings = engine::resolve(picture.request, base_.model);
    const ImageText text = Encoder::text_of(base_, settings, picture.index);
    media::VideoWriter writer(path, job::video_format(settings, text));
    for (int64_t i = 0; i < kFrames; ++i)
      writer.write(moving_frame(kHeight, kWidth, i + 5 * picture.index).pixels);
    writer.commit();
    return read_file(path, 1 << 20);
  }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& each : std::filesystem::directory_iterator(folder_ / "encoder"))
      names.push_back(each.path().filename());
    return names;
  }

  job::Job base_;
  std::unique_ptr<Encoder> encoder_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  std::vector<Encoder::Made> made_;
};

TEST_F(EncoderTest, FramesThatComeInPartsAreTheWholeVideo) {
  for (const std::string suffix : {".mp4", ".webm", ".gif"}) {
    const Encoder::Picture one = picture(suffix);
    add(one, frames(0, 5));
    add(one, frames(5, 11));
    EXPECT_TRUE(wait().empty()) << suffix << ": not whole yet";
    add(one, frames(16, 1));
    const auto made = wait();
    ASSERT_EQ(made.size(), 1) << suffix;
    const std::string file = file_of(made.front());
    EXPECT_TRUE(file == written(one)) << suffix;
    media::VideoReader reader(std::as_bytes(std::span(file)), "video");
    for (int64_t i = 0; i < kFrames; ++i) {
      const auto frame = reader.next();
      ASSERT_TRUE(frame) << suffix << i;
      EXPECT_GT(psnr(*frame, moving_frame(kHeight, kWidth, i)), 25) << suffix << i;
    }
    EXPECT_FALSE(reader.next()) << suffix;
    EXPECT_TRUE(left().empty()) << suffix;
  }
}

TEST_F(EncoderTest, VideosThatAreMadeAtOnceDoNotMix) {
  const Encoder::Picture first = picture(".mp4"), second = picture(".mp4", kFrames, 1);
  add(first, frames(0, 9));
  add(second, frames(0, 9, kFrames, 1));
  add(second, frames(9, 8, kFrames, 1));
  add(first, frames(9, 8));
  const auto made = wait();
  ASSERT_EQ(made.size(), 2);
  EXPECT_TRUE(file_of(made.at(0)) == written(second));
  EXPECT_TRUE(file_of(made.at(1)) == written(first));
}

TEST_F(EncoderTest, ARunThatBeginsAnewBeginsItsVideoAnew) {
  const Encoder::Picture one = picture(".mp4");
  add(one, frames(0, 9, kFrames, 3));
  add(one, frames(0, 9));
  add(one, frames(9, 8));
  const auto made = wait();
  ASSERT_EQ(made.size(), 1);
  EXPECT_TRUE(file_of(made.front()) == written(one));
}

TEST_F(EncoderTest, AVideoThatIsForgottenLeavesNothing) {
  add(picture(".mp4"), frames(0, 9));
  add(picture(".mp4", kFrames, 0, "other"), frames(0, 9));
  encoder_->forget("job");
  add(picture(".mp4"), frames(9, 8));
  add(picture(".mp4", kFrames, 0, "other"), frames(9, 8));
  const auto made = wait();
  ASSERT_EQ(made.size(), 2);
  EXPECT_EQ(std::get<std::string>(made.at(0)), "[video] its beginning is missing");
  EXPECT_TRUE(file_of(made.at(1)) == written(picture(".mp4")));
  EXPECT_TRUE(left().empty());
}

TEST_F(EncoderTest, AVideoOfOneFrameIsAPicture) {
  const Encoder::Picture one = picture(".png", 1);
  add(one, frames(0, 1, 1));
  const auto made = wait();
  ASSERT_EQ(made.size(), 1);
  const engine::Settings settings = engine::resolve(one.request, base_.model);
  EXPECT_TRUE(file_of(made.front()) ==
              encode_png(moving_frame(kHeight, kWidth, 0), Encoder::text_of(base_, settings, 0)));
}

}  // namespace
}  // namespace tessera::serve
