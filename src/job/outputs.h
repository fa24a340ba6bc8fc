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
// What is at the end of all links, and need not exist yet.
std::filesystem::path real_path(const std::filesystem::path& path);
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);
// The file is there when all of it is written.
void write_text(const std::filesystem::path& path, std::string_view text);

// Throws Error(kUsage) for an output file with a suffix that no model writes, before the model is read.
void require_known_suffix(const GenerateArguments& arguments);

// The path of the output: the given one, or the default for what the model makes. Throws Error(kUsage) if its
// suffix is of another kind of file.
std::filesystem::path output_path(const GenerateArguments& arguments, const engine::Settings& settings);
// Whether the one image goes to standard output, as a PNG, and no paths are printed.
bool is_standard_output(const std::filesystem::path& path);
// For a command with one result, which goes to a file, or alone to standard output ("-" or /dev/stdout). The
// first refuses what cannot be written. The second writes, and returns whether a file has the result.
void require_result_path(const std::string& option, const std::filesystem::path& path);
bool write_result(const std::filesystem::path& path, std::string_view text);

// One file for one image or video, or for latents, otherwise name-0.png, name-1.png, ... or, of more than
// ten, name-00.png, name-01.png, ... A name with %d or %03d gets the numbers there, from 0 on; %% is a
// percent sign.
std::vector<std::string> output_paths(const std::filesystem::path& path, const engine::Settings& settings);

// Whether each output is an image, as that of a video model for one frame may be.
bool are_images(const std::vector<std::string>& outputs, const engine::Settings& settings);

// The files that stand there in the end: a .png of a video that moves is one for each frame.
std::vector<std::string> written_paths(const std::vector<std::string>& outputs,
                                       const engine::Settings& settings);

// Numbered files of this name that are not of this run: another has left them, and they seem to belong to it.
std::vector<std::string> leftover_paths(const std::filesystem::path& path,
                                        const std::vector<std::string>& outputs,
                                        const engine::Settings& settings);

media::VideoFormat video_format(const engine::Settings& settings, const ImageText& text);

// Writes the videos of a run while it goes on. A file is opened at its first frame, and appears when all its
// frames are there.
class VideoFiles {
 public:
  // Videos of `frames` frames each go to `paths`, in the format that `format` gives for their numbers.
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
  std::map<int64_t, File> files_;  // that are begun, by their numbers
};

}  // namespace tessera::job
