#include "serve/encoder.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <system_error>

#include "core/error.h"
#include "core/file.h"
#include "engine/request.h"
#include "job/outputs.h"
#include "job/report.h"
#include "media/codecs.h"
#include "media/still_image.h"
#include "parallel/layout.h"

namespace tessera::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kContentTypes = {
    {{".png", "image/png"},
     {".jpg", "image/jpeg"},
     {".webp", "image/webp"},
     {".mp4", "video/mp4"},
     {".webm", "video/webm"},
     {".gif", "image/gif"}}};
constexpr uint64_t kMostVideoBytes = uint64_t{4} << 30;

template <typename Work>
Encoder::Made made_by(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return std::string(error.what());
  }
}

// Makes the bytes of a file, or some of them.
template <typename Make>
Encoder::File timed(const Make& make) {
  const auto begin = std::chrono::steady_clock::now();
  std::shared_ptr<const std::string> bytes = make();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {.bytes = std::move(bytes), .seconds = seconds.count()};
}

job::Job with_settings(const job::Job& base, const engine::Settings& settings) {
  job::Job job = base;
  job.settings = settings;
  job.layout =
      parallel::resolve_layout(job.arguments.parallel, engine::workload(settings, job.model), std::nullopt);
  return job;
}

Encoder::File encode_picture(const std::string& suffix, const Image& image, const ImageText& text) {
  return timed([&] {
    return std::make_shared<const std::string>(media::encode_image("result" + suffix, image, text));
  });
}

}  // namespace

std::string_view content_type_of(std::string_view suffix) {
  for (const auto& [known, type] : kContentTypes) {
    if (known == suffix) return type;
  }
  return {};
}

Encoder::Encoder(job::Job base, fs::path folder, Post post)
    : base_(std::move(base)), folder_(std::move(folder)), post_(std::move(post)) {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  fs::create_directories(folder_, ignored);
  thread_ = std::thread([this] { work(); });
}

Encoder::~Encoder() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Encoder::run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Encoder::work() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty() || is_ending_; });
      if (is_ending_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

ImageText Encoder::text_of(const job::Job& base, const engine::Settings& settings, int64_t index) {
  return job::png_text(with_settings(base, settings), index);
}

// The others are made while their run decodes those before.
ImageText Encoder::Plan::text(int64_t index) const {
  return index == 0 ? first : job::png_text(job, index);
}

const Encoder::Plan& Encoder::plan(const std::string& job, const engine::Request& request) {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) return found->second;
  Plan plan{.job = with_settings(base_, engine::resolve(request, base_.model)), .first = {}};
  plan.first = job::png_text(plan.job, 0);
  return jobs_.emplace(job, std::move(plan)).first->second;
}

void Encoder::expect(const std::string& job, const engine::Request& request) {
  run([this, job, request] {
    made_by([&]() -> Made {  // errors are reported when a picture comes
      plan(job, request);
      return File();
    });
  });
}

void Encoder::encode(Picture picture, Image image, Done done) {
  run([this, picture = std::move(picture), image = std::move(image), done = std::move(done)] {
    Made made = made_by([&] {
      return encode_picture(picture.suffix, image, plan(picture.job, picture.request).text(picture.index));
    });
    post_([done, made = std::move(made)] { done(made); });
  });
}

void Encoder::preview(Image image, Done done) {
  run([this, image = std::move(image), done = std::move(done)] {
    Made made = made_by([&] {
      return timed([&] {
        return std::make_shared<const std::string>(
            media::codecs().encode_image(media::ImageFormat::kJpeg, "preview", image));
      });
    });
    post_([done, made = std::move(made)] { done(made); });
  });
}

void Encoder::add_frames(Picture picture, VideoFrames frames, Done done) {
  run([this, picture = std::move(picture), frames = std::move(frames), done = std::move(done)] {
    Made made = made_by([&] { return add(picture, frames); });
    if (const auto* file = std::get_if<File>(&made); file != nullptr && file->bytes == nullptr) return;
    videos_.erase({picture.job, picture.index});
    post_([done, made = std::move(made)] { done(made); });
  });
}

// Returns the file when the video is complete, otherwise one without bytes.
Encoder::File Encoder::add(const Picture& picture, const VideoFrames& frames) {
  if (frames.total == 1 && media::is_image_path("result" + picture.suffix)) {
    const Image image{.height = frames.height,
                      .width = frames.width,
                      .pixels = {frames.pixels.begin(), frames.pixels.end()}};
    return encode_picture(picture.suffix, image, plan(picture.job, picture.request).text(picture.index));
  }
  Video& video = videos_[{picture.job, picture.index}];
  if (frames.first == 0) {  // also for a run that has started over
    video.writer.reset();
    video.seconds = 0;
    video.path = folder_ / fmt::format("{}.{}{}", picture.job, picture.index, picture.suffix);
    const Plan& planned = plan(picture.job, picture.request);
    video.writer.emplace(video.path, job::video_format(planned.job.settings, planned.text(picture.index)));
  }
  if (!video.writer) input_error("video", "its beginning is missing");
  File file = timed([&]() -> std::shared_ptr<const std::string> {
    const auto* pixels = reinterpret_cast<const uint8_t*>(frames.pixels.data());
    const auto size = static_cast<size_t>(frames.height * frames.width * 3);
    for (int64_t i = 0; i < frames.count; ++i)
      video.writer->write({pixels + static_cast<size_t>(i) * size, size});
    if (frames.first + frames.count < frames.total) return nullptr;
    video.writer->commit();
    return std::make_shared<const std::string>(read_file(video.path, kMostVideoBytes));
  });
  file.seconds = video.seconds += file.seconds;
  if (file.bytes == nullptr) return file;
  std::error_code ignored;
  fs::remove(video.path, ignored);
  return file;
}

void Encoder::forget(const std::string& job) {
  run([this, job] {
    jobs_.erase(job);
    std::erase_if(videos_, [&](const auto& each) { return each.first.first == job; });
  });
}

}  // namespace tessera::serve
