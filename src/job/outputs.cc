#include "job/outputs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/temporary_file.h"
#include "launch/streams.h"
#include "media/still_image.h"
#include "media/suffix.h"

namespace tessera::job {
namespace {

using media::suffix_of;

constexpr const char* kImageSuffix = ".png";
constexpr const char* kLatentSuffix = ".safetensors";
constexpr int kFrameDigits = 4;  // at least

void require_suffix(const std::filesystem::path& path, const std::vector<std::string>& suffixes,
                    const char* things) {
  if (std::find(suffixes.begin(), suffixes.end(), suffix_of(path)) != suffixes.end()) return;
  usage_error(field("output"), "'{}' must end in {}: {} are written in {}", path.string(),
              fmt::join(suffixes, ", "), things, suffixes.size() == 1 ? "that format" : "these formats");
}

// Returns whether each output is a numbered file for each frame.
bool are_frames(const std::vector<std::string>& outputs, const engine::Settings& settings) {
  return settings.all_frames() > 1 && suffix_of(outputs.front()) == kImageSuffix;
}

// Returns the digits of the largest number, so that names sort as their numbers do.
int picture_digits(int64_t pictures) {
  return static_cast<int>(std::to_string(pictures - 1).size());
}

bool is_latent(const GenerateArguments& arguments) {
  return arguments.request.output_type == engine::OutputType::kLatent;
}

}  // namespace

void require_writable_for(const std::string& option, const std::filesystem::path& path) {
  if (path.empty()) usage_error(option, "is empty; name a file");
  if (is_standard_output(path))
    usage_error(option, "'-' is not standard output here; name a file, or /dev/stdout");
  try {
    require_writable(path);
  } catch (const Error& error) {
    throw Error(error.kind(), option, error.message());
  }
}

std::filesystem::path real_path(const std::filesystem::path& path) {
  std::error_code code;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(follow_links(path), code), code);
}

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  return real_path(a) == real_path(b);
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

bool is_standard_output(const std::filesystem::path& path) {
  return path == "-";
}

void require_result_path(const std::string& option, const std::filesystem::path& path) {
  if (!is_standard_output(path)) return require_writable_for(option, path);
  if (launch::was_output_missing()) usage_error(option, "standard output is closed; name a file");
}

bool write_result(const std::filesystem::path& path, std::string_view text) {
  const bool is_file = !is_standard_output(path) && path != "/dev/stdout";
  if (is_file) {
    write_text(path, text);
  } else {
    fmt::print("{}", text);
  }
  return is_file;
}

void require_known_suffix(const GenerateArguments& arguments) {
  if (!arguments.run.output || is_standard_output(*arguments.run.output)) return;
  const std::filesystem::path path = *arguments.run.output;
  if (is_latent(arguments)) return require_suffix(path, {kLatentSuffix}, "latents");
  if (media::is_video_path(path) || media::is_image_path(path)) return;
  usage_error(field("output"), "'{}' must end in {} for images, or in {} for videos", path.string(),
              fmt::join(media::image_suffixes(), ", "), fmt::join(media::video_suffixes(), ", "));
}

std::filesystem::path output_path(const GenerateArguments& arguments, const engine::Settings& settings) {
  const bool moves = settings.all_frames() > 1;
  const std::string suffix = is_latent(arguments) ? kLatentSuffix : moves ? ".mp4" : kImageSuffix;
  std::filesystem::path path = arguments.run.output.value_or("out" + suffix);
  if (is_standard_output(path)) {
    if (is_latent(arguments) || moves || settings.pictures() > 1)
      usage_error(field("output"), "standard output takes one image; name a file for {}",
                  is_latent(arguments) ? "latents"
                  : moves              ? "videos"
                                       : "several");
    return path;
  }
  if (is_latent(arguments)) {
    require_suffix(path, {kLatentSuffix}, "latents");
  } else if (settings.video.shown_fps > 0 && (moves || !media::is_image_path(path))) {
    require_suffix(path, media::video_suffixes(), "videos");
    if (suffix_of(path) == ".gif" && settings.video.shown_fps > media::kMostGifFps)
      usage_error(field("fps"), "a GIF shows at most {} frames a second, got {}", media::kMostGifFps,
                  settings.video.shown_fps);
  } else {
    require_suffix(path, media::image_suffixes(), "images");
  }
  return path;
}

namespace {

// Returns the number of digits of the largest number, so that names sort as their numbers do.
struct Conversion {
  size_t length = 0;
  int digits = 1;
};

Conversion conversion_at(std::string_view text) {
  const bool is_padded = text.size() > 3 && text[1] == '0' && text[2] >= '1' && text[2] <= '9';
  const size_t length = is_padded ? 4 : 2;
  if (text.size() < length || text[0] != '%' || text[length - 1] != 'd') return {};
  return {.length = length, .digits = is_padded ? text[2] - '0' : 1};
}

bool begins_with_letter(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0;
}

struct Named {
  std::filesystem::path path;
  bool is_numbered = false;
};

// Describes the conversion of a number in a name: %d, or %03d, which has three digits. Its length is 0 if
// there is none.
Named named(const std::filesystem::path& pattern, int64_t number, bool is_one) {
  const std::string text = pattern.filename().string();
  std::string_view rest = text;
  std::string name;
  bool is_numbered = false;
  while (!rest.empty()) {
    const Conversion conversion = conversion_at(rest);
    if (rest.starts_with("%%")) {
      name += '%';
      rest.remove_prefix(2);
    } else if (conversion.length > 0 && !(is_one && begins_with_letter(rest.substr(conversion.length)))) {
      name += fmt::format("{:0{}}", number, conversion.digits);
      rest.remove_prefix(conversion.length);
      is_numbered = true;
    } else {
      name += rest.front();
      rest.remove_prefix(1);
    }
  }
  return {.path = pattern.parent_path() / name, .is_numbered = is_numbered};
}

}  // namespace

std::vector<std::string> output_paths(const std::filesystem::path& path, const engine::Settings& settings) {
  const bool is_latent = settings.request.output_type == engine::OutputType::kLatent;
  const int64_t count = is_latent ? 1 : settings.pictures();
  std::vector<std::string> paths;
  for (int64_t i = 0; i < count; ++i) {
    const Named own = named(path, i, count == 1);
    paths.push_back(own.is_numbered || count == 1 ? own.path
                                                  : numbered_path(own.path, i, picture_digits(count)));
  }
  return paths;
}

bool are_images(const std::vector<std::string>& outputs, const engine::Settings& settings) {
  return settings.request.output_type == engine::OutputType::kImage && settings.all_frames() == 1 &&
         (is_standard_output(outputs.front()) || media::is_image_path(outputs.front()));
}

std::vector<std::string> written_paths(const std::vector<std::string>& outputs,
                                       const engine::Settings& settings) {
  if (!are_frames(outputs, settings)) return outputs;
  std::vector<std::string> paths;
  for (const std::string& path : outputs) {
    for (int64_t i = 0; i < settings.all_frames(); ++i) paths.push_back(numbered_path(path, i, kFrameDigits));
  }
  return paths;
}

std::vector<std::string> leftover_paths(const std::filesystem::path& path,
                                        const std::vector<std::string>& outputs,
                                        const engine::Settings& settings) {
  std::vector<std::string> paths;
  const auto add_from = [&](const std::filesystem::path& unnumbered, int64_t number, int digits) {
    std::error_code code;
    while (std::filesystem::exists(numbered_path(unnumbered, number, digits), code))
      paths.push_back(numbered_path(unnumbered, number++, digits));
  };
  const auto count = static_cast<int64_t>(outputs.size());
  const Named first = named(path, count, count == 1);
  if (are_frames(outputs, settings)) {
    for (const std::string& output : outputs) add_from(output, settings.all_frames(), kFrameDigits);
  } else if (first.is_numbered) {
    std::error_code code;
    for (int64_t i = count;; ++i) {
      const std::filesystem::path next = named(path, i, count == 1).path;
      if (!std::filesystem::exists(next, code)) break;
      paths.push_back(next);
    }
  } else if (count > 1) {
    // Shorter and longer runs may use names with other numbers of digits.
    for (int digits = 1; digits <= picture_digits(engine::kMaxPictures); ++digits)
      add_from(first.path, digits == picture_digits(count) ? count : 0, digits);
  }
  return paths;
}

media::VideoFormat video_format(const engine::Settings& settings, const ImageText& text) {
  return {.height = settings.height, .width = settings.width, .fps = settings.video.shown_fps, .text = text};
}

bool VideoFiles::add(int64_t video, const at::Tensor& frames) {
  File& file = files_[video];
  if (!file.writer) {
    file.writer.emplace(paths_[static_cast<size_t>(video)], format_(video));
    file.missing = frames_;
  }
  for (int64_t i = 0; i < frames.size(0); ++i) {
    const at::Tensor frame = frames[i].contiguous();
    file.writer->write({frame.const_data_ptr<uint8_t>(), static_cast<size_t>(frame.numel())});
  }
  file.missing -= frames.size(0);
  if (file.missing > 0) return false;
  file.writer->commit();
  files_.erase(video);
  return true;
}

}  // namespace tessera::job
