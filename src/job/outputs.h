// The files of a job: images, videos or latents.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/image.h"
#include "engine/request.h"
#include "engine/result.h"
#include "job/arguments.h"
#include "media/video_writer.h"

namespace tessera::job {

// Throws Error, which names the option that gave the path, unless a file can be written there.
void require_writable_for(const std::string& option, const std::filesystem::path& path);
// Returns the path at the end of all links, which need not exist yet.
std::filesystem::path real_path(const std::filesystem::path& path);
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);
// The file appears when all of it is written.
void write_text(const std::filesystem::path& path, std::string_view text);

// Throws Error(kUsage) for an output file with a suffix that no model writes, before the model is read.
void require_known_suffix(const GenerateArguments& arguments);

// Returns the path of the output: the given one, or the default for the kind of output that the model makes.
// Throws Error(kUsage) if its suffix is that of another kind of file.
std::filesystem::path output_path(const GenerateArguments& arguments, const engine::Settings& settings);
// Whether the only image goes to standard output, as a PNG, without any paths being printed.
bool is_standard_output(const std::filesystem::path& path);
// For a command with one result, which goes to a file or, alone, to standard output ("-" or /dev/stdout). The
// first function refuses a path that cannot be written. The second writes, and returns whether the result is
// in a file.
void require_result_path(const std::string& option, const std::filesystem::path& path);
bool write_result(const std::filesystem::path& path, std::string_view text);

// One file for one image or video, or for latents, otherwise name-0.png, name-1.png, ... or, for more than
// ten, name-00.png, name-01.png, ... In a name, %d or %03d stands for the number, from 0 on; %% is a percent
// sign.
std::vector<std::string> output_paths(const std::filesystem::path& path, const engine::Settings& settings);

// Whether each output is an image, which is possible for a video model with one frame.
bool are_images(const std::vector<std::string>& outputs, const engine::Settings& settings);

// Returns the files that exist in the end: a .png of a video with several frames becomes one file for each
// frame.
std::vector<std::string> written_paths(const std::vector<std::string>& outputs,
                                       const engine::Settings& settings);

// Returns numbered files with this name that are not from this run: another run has left them, and they would
// seem to belong to this one.
std::vector<std::string> leftover_paths(const std::filesystem::path& path,
                                        const std::vector<std::string>& outputs,
                                        const engine::Settings& settings);

media::VideoFormat video_format(const engine::Settings& settings, const ImageText& text);

// Writes the videos of a run while it goes on. A file is opened at its first frame, and appears when all its
// frames are there.
class VideoFiles {
 public:
  // Videos of `frames` frames each go to `paths`; `format` returns the format of a video by its number.
  VideoFiles(const std::vector<std::string>& paths, int64_t frames,
             std::function<media::VideoFormat(int64_t video)> format)
      : paths_(paths), frames_(frames), format_(std::move(format)) {}
  // Takes frames as engine::Observer::decoded gives them. Returns whether the video is finished.
  bool add(int64_t video, const at::Tensor& frames);

 private:
  struct File {
    std::optional<media::VideoWriter> writer;
    int64_t missing = 0;  // frames
  };
  std::vector<std::string> paths_;
  int64_t frames_;
  std::function<media::VideoFormat(int64_t video)> format_;
  std::map<int64_t, File> files_;  // those that have been started, by number
};

}  // namespace tessera::job
