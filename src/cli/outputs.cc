#include "cli/outputs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/file_sequence.h"
#include "media/still_image.h"
#include "media/suffix.h"

namespace tessera::cli {
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

// Whether each output is a numbered file for each frame.
bool are_frames(const std::vector<std::string>& outputs, const engine::Settings& settings) {
  return settings.all_frames() > 1 && suffix_of(outputs.front()) == kImageSuffix;
}

// Digits of the largest number, so that names sort as their numbers do.
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

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto canonical = [](const std::filesystem::path& path) {
    std::error_code code;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, code), code);
  };
  return canonical(a) == canonical(b);
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

bool is_standard_output(const std::filesystem::path& path) {
  return path == "-";
}

void require_known_suffix(const GenerateArguments& arguments) {
  if (!arguments.run.output || is_standard_output(*arguments.run.output)) return;
  const std::filesystem::path path = *arguments.run.output;
  if (is_latent(arguments)) return require_suffix(path, {kLatentSuffix}, "latents");
  if (media::is_video_path(path) || media::is_image_path(path)) return;
  usage_error(field("output"), "'{}' must end in {} for images, or in {} for videos", path.string(),
              fmt::join(media::image_suffixes(), ", "), fmt::join(media::video_suffixes(), ", "));
}

std::filesystem::path output_path(const GenerateArguments& arguments, const engine::Settings& settings,
                                  bool is_video) {
  const bool moves = is_video && settings.frames > 1;
  const std::string suffix = is_latent(arguments) ? kLatentSuffix : moves ? ".mp4" : kImageSuffix;
  std::filesystem::path path = arguments.run.output.value_or("out" + suffix);
  if (is_standard_output(path)) {
    if (is_latent(arguments) || is_video || settings.pictures() > 1)
      usage_error(field("output"), "standard output takes one image; name a file for {}",
                  is_latent(arguments) ? "latents"
                  : is_video           ? "videos"
                                       : "several");
    return path;
  }
  if (is_latent(arguments)) {
    require_suffix(path, {kLatentSuffix}, "latents");
  } else if (is_video) {
    require_suffix(path, media::video_suffixes(), "videos");
    if (suffix_of(path) == ".gif" && settings.shown_fps() > media::kMostGifFps)
      usage_error(field("fps"), "a GIF shows at most {} frames a second, got {}", media::kMostGifFps,
                  settings.shown_fps());
  } else {
    require_suffix(path, media::image_suffixes(), "images");
  }
  return path;
}

namespace {

// The path with a number in the place of %d, or of %03d, which gives it three digits; empty where the name
// has neither.
std::optional<std::string> patterned_path(const std::filesystem::path& path, int64_t number) {
  const std::string name = path.filename().string();
  const size_t begin = name.find('%');
  if (begin == std::string::npos) return std::nullopt;
  size_t end = begin + 1;
  int digits = 1;
  if (end + 1 < name.size() && name[end] == '0' && name[end + 1] >= '1' && name[end + 1] <= '9') {
    digits = name[end + 1] - '0';
    end += 2;
  }
  if (end == name.size() || name[end] != 'd') return std::nullopt;
  return path.parent_path() /
         fmt::format("{}{:0{}}{}", name.substr(0, begin), number, digits, name.substr(end + 1));
}

}  // namespace

std::vector<std::string> output_paths(const std::filesystem::path& path, const engine::Settings& settings) {
  const int64_t pictures = settings.pictures();
  if (settings.request.output_type != engine::OutputType::kLatent && patterned_path(path, 0)) {
    std::vector<std::string> paths;
    for (int64_t i = 0; i < pictures; ++i) paths.push_back(*patterned_path(path, i));
    return paths;
  }
  if (pictures == 1 || settings.request.output_type == engine::OutputType::kLatent) return {path.string()};
  std::vector<std::string> paths;
  for (int64_t i = 0; i < pictures; ++i) paths.push_back(numbered_path(path, i, picture_digits(pictures)));
  return paths;
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
  if (are_frames(outputs, settings)) {
    for (const std::string& output : outputs) add_from(output, settings.all_frames(), kFrameDigits);
  } else if (patterned_path(path, 0)) {
    std::error_code code;
    for (auto i = static_cast<int64_t>(outputs.size());
         std::filesystem::exists(*patterned_path(path, i), code); ++i)
      paths.push_back(*patterned_path(path, i));
  } else if (outputs.size() > 1) {
    // Shorter and longer runs may have names with other numbers of digits.
    const auto count = static_cast<int64_t>(outputs.size());
    for (int digits = 1; digits <= picture_digits(engine::kMaxPictures); ++digits)
      add_from(path, digits == picture_digits(count) ? count : 0, digits);
  }
  return paths;
}

VideoFiles::VideoFiles(const std::vector<std::string>& paths, const engine::Settings& settings,
                       const std::vector<ImageText>& texts) {
  for (size_t i = 0; i < paths.size(); ++i)
    files_.push_back({media::VideoWriter(paths[i], media::VideoFormat{.height = settings.height,
                                                                      .width = settings.width,
                                                                      .fps = settings.shown_fps(),
                                                                      .text = texts[i]}),
                      settings.all_frames()});
}

bool VideoFiles::add(int64_t video, const at::Tensor& frames) {
  File& file = files_[static_cast<size_t>(video)];
  for (int64_t i = 0; i < frames.size(0); ++i) {
    const at::Tensor frame = frames[i].contiguous();
    file.writer.write({frame.const_data_ptr<uint8_t>(), static_cast<size_t>(frame.numel())});
  }
  file.missing -= frames.size(0);
  if (file.missing == 0) file.writer.commit();
  return file.missing == 0;
}

}  // namespace tessera::cli
