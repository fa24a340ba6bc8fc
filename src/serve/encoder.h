// Turns pictures and videos of jobs into files, on a thread of its own: this takes longer than the server's
// thread may be busy.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>

#include "core/image.h"
#include "job/job.h"
#include "media/video_writer.h"
#include "serve/journal_thread.h"
#include "serve/world.h"

namespace tessera::serve {

// Returns "image/png" for ".png"; empty for a suffix that no result has.
std::string_view content_type_of(std::string_view suffix);

class Encoder {
 public:
  // `base` has the model, and the arguments of `tessera generate` that all jobs have in common. Videos are
  // written in `folder` first, which is emptied now.
  Encoder(job::Job base, std::filesystem::path folder, Post post);
  ~Encoder();  // drops whatever is waiting
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  struct Picture {
    std::string job;          // its id
    engine::Request request;  // with every choice made
    int64_t index = 0;        // among the pictures of the job
    std::string suffix = {};
  };
  struct File {
    std::shared_ptr<const std::string> bytes;
    double seconds = 0;  // the time it took to make the file
  };
  // A file, or an error message.
  using Made = std::variant<File, std::string>;
  using Done = std::function<void(Made)>;
  // Plans a job while its run computes, so that its pictures do not have to wait for this.
  void expect(const std::string& job, const engine::Request& request);
  // The bytes are the same as in the file that `tessera generate` would write.
  void encode(Picture picture, Image image, Done done);
  // Frames of a video must come in order. Calls back when the video is complete, or has failed.
  void add_frames(Picture picture, VideoFrames frames, Done done);
  // Forgets the plan of a job, and its incomplete videos.
  void forget(const std::string& job);
  // A small JPEG.
  void preview(Image image, Done done);
  // For anything else that takes long, such as writing files.
  void run(std::function<void()> work);

  // Returns the text that results of a job contain. The server's thread may call it too.
  static ImageText text_of(const job::Job& base, const engine::Settings& settings, int64_t index);

 private:
  struct Video {
    std::filesystem::path path;
    std::optional<media::VideoWriter> writer;
    double seconds = 0;  // the time it has taken so far
  };
  void work();
  // What the files of a job are made of.
  struct Plan {
    job::Job job;
    ImageText first;  // of its first picture
    ImageText text(int64_t index) const;
  };
  const Plan& plan(const std::string& job, const engine::Request& request);
  File add(const Picture& picture, const VideoFrames& frames);

  const job::Job base_;
  const std::filesystem::path folder_;
  const Post post_;
  std::map<std::pair<std::string, int64_t>, Video> videos_;  // used only by the thread, as is the next member
  std::map<std::string, Plan> jobs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_ending_ = false;
  std::thread thread_;  // must be last: it uses all other members
};

}  // namespace tessera::serve
