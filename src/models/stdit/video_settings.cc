#include "models/stdit/video_settings.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/text.h"
#include "models/prompt.h"
#include "models/stdit/sizes.h"

namespace tessera::models {
namespace {

// Defaults where neither the request nor the model gives a value, as Open-Sora is published.
constexpr const char* kResolution = "240p";
constexpr const char* kAspectRatio = "9:16";
constexpr double kFps = 24;

// The versions differ in these defaults.
struct Version {
  int64_t frames, condition_frames;
  std::optional<int64_t> frame_interval = {};
  std::optional<double> aesthetic_score = {};
  bool aligns = false;
};

// A size is given either in pixels or by its name.
void check_names(const VideoRequest& request, const VideoInputs& inputs) {
  const auto& size = request.resolution ? request.resolution : request.aspect_ratio;
  if (size && (inputs.height || inputs.width))
    usage_error(field(request.resolution ? "resolution" : "aspect_ratio"),
                "'{}' is a size by name; leave out {} and {}, or give no name", *size, field("height"),
                field("width"));
}

VideoSize default_size(const VideoRequest& request, const VideoInputs& inputs) {
  const auto& sample = inputs.shape.video_sample;
  if (sample && !request.resolution && !request.aspect_ratio)
    return {(*sample)[1] * inputs.scale.pixels, (*sample)[2] * inputs.scale.pixels};
  return video_size(request.resolution.value_or(kResolution), request.aspect_ratio.value_or(kAspectRatio));
}

int64_t default_frames(const VideoInputs& inputs, const Version& version) {
  if (!inputs.shape.video_sample) return version.frames;
  const LatentScale& scale = inputs.scale;
  const int64_t latents = (*inputs.shape.video_sample)[0], of_clip = scale.latent_frames(scale.clip);
  return latents / of_clip * scale.clip + latents % of_clip * scale.frames;
}

// Some sizes of the published code have rows and columns that latents do not cover.
void warn_of_size(VideoSettings& settings, int64_t unit) {
  const VideoSize size{settings.height, settings.width};
  if ((size.height % unit == 0 && size.width % unit == 0) || is_video_size(size)) return;
  settings.warnings.push_back(fmt::format("frames will be {} x {}: sides are multiples of {}",
                                          size.height / unit * unit, size.width / unit * unit, unit));
}

// Sets the parts of a long video.
void resolve_loops(VideoSettings& settings, VideoRequest& request, const VideoInputs& inputs,
                   const Version& version) {
  const int64_t clip = inputs.scale.clip, of_clip = inputs.scale.latent_frames(clip);
  request.loop = request.loop.value_or(1);
  settings.loops = *request.loop;
  if (settings.loops == 1) return;
  if (!inputs.is_decoded)
    usage_error(field("loop"), "a video of {} parts is decoded between them; leave out {}", settings.loops,
                field("output_type"));
  request.condition_frame_length = request.condition_frame_length.value_or(version.condition_frames);
  request.condition_frame_edit = request.condition_frame_edit.value_or(0);
  const int64_t length = *request.condition_frame_length;
  if (length % of_clip != 0)
    usage_error(
        field("condition_frame_length"),
        "must be a multiple of the {} latent frames of a clip, got {}; the nearest valid length is {}",
        of_clip, length, of_clip * std::max<int64_t>(1, (length + of_clip / 2) / of_clip));
  settings.repeated = length / of_clip * clip;
  if (settings.repeated >= *request.num_frames)
    usage_error(field("num_frames"),
                "a part of a long video must have more than the {} frames of the part before with which it "
                "begins, got {}; {} {} would do",
                settings.repeated, *request.num_frames, field("num_frames"), settings.repeated + clip);
}

// Refuses ranges that refer to frames or parts that do not exist. They were given by `where`.
void check_ranges(const std::vector<GivenRange>& ranges, int64_t paths, int64_t loops,
                  const std::string& where) {
  for (const GivenRange& range : ranges) {
    if (range.loop >= loops)
      usage_error(where, "there is no part {}: the video has {} ({}), counted from 0", range.loop, loops,
                  field("loop"));
    // Each part adds its predecessor to the list.
    const int64_t count = paths + range.loop;
    if (count == 0)
      usage_error(where, "has no effect without {}, of which it takes frames", field("reference_path"));
    if (range.reference >= count || range.reference < -count)
      usage_error(where, "there is no reference {}: the prompt has {} ({}), counted from 0", range.reference,
                  paths, field("reference_path"));
  }
}

// Adds the references of a prompt, whose settings are `own`, and the ranges that use them.
void add_references(VideoSettings& settings, PromptSettings own, const VideoRequest& request, size_t prompt) {
  const auto choose = [&](std::optional<std::string>& value, const std::vector<std::string>& texts,
                          const char* name) {
    std::string where = value ? field("prompt") + ": " + name : field(name);
    if (!value) value = text_of(texts, prompt).value_or("");
    return where;
  };
  const std::string of_paths = choose(own.reference_path, request.reference_paths, "reference_path");
  const std::string of_strategy = choose(own.mask_strategy, request.mask_strategies, "mask_strategy");
  const std::vector<std::string> paths = split_paths(*own.reference_path);
  if (std::any_of(paths.begin(), paths.end(), [](const std::string& path) { return path.empty(); }))
    usage_error(of_paths, "'{}' names no file before or after a ';'", *own.reference_path);
  settings.given.push_back(parse_mask_strategy(*own.mask_strategy, of_strategy));
  if (!paths.empty() && settings.given.back().empty())
    usage_error(of_paths, "'{}' has no effect without {}; \"0\" begins the video with it", paths.front(),
                field("mask_strategy"));
  check_ranges(settings.given.back(), std::ssize(paths), settings.loops, of_strategy);
  settings.references.push_back(paths);
}

// Returns whether a prompt begins like a prompt for parts, but with a later part than the first.
bool names_later_part(const std::string& prompt) {
  const size_t end = prompt.find_first_not_of("0123456789", 1);
  return prompt.starts_with('|') && !prompt.starts_with("|0|") && end > 1 && end < prompt.size() &&
         prompt[end] == '|';
}

// Adds the part of a prompt that the text encoder gets in each part of the video. Refuses texts that are not
// prompts for parts.
void add_texts(VideoSettings& settings, const std::string& text, const VideoRequest& request) {
  if (names_later_part(text))
    settings.warnings.push_back(
        fmt::format("'{}' names no text for part 0, so it is one prompt for all parts; |0|TEXT names it",
                    printable(text)));
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  if (prompt_of_loop(text, settings.loops - 1) != prompt_of_loop(text, kLast))
    settings.warnings.push_back(fmt::format("'{}' has texts for more parts than the video's {} ({})",
                                            printable(text), settings.loops, field("loop")));
  settings.texts.emplace_back();
  for (int64_t loop = 0; loop < settings.loops; ++loop)
    settings.texts.back().push_back(with_scores(prompt_of_loop(text, loop), request));
}

// Chooses the alignment of given frames, which only matters if there are any.
void choose_align(VideoSettings& settings, VideoRequest& request, bool has_given, int64_t of_clip) {
  if (has_given) {
    request.align = request.align.value_or(of_clip);
  } else if (request.align) {
    settings.warnings.push_back(fmt::format("{} has no effect: no frames are given", field("align")));
    request.align.reset();
  }
}

// Returns the numbers that the networks read.
std::map<std::string, double> conditions_of(const VideoSettings& settings, const VideoRequest& request) {
  // The published code marks images for the model by this rate.
  constexpr double kFpsOfImages = 120;
  const auto height = static_cast<double>(settings.height), width = static_cast<double>(settings.width);
  return {{"fps", *request.num_frames == 1 ? kFpsOfImages : *request.fps},
          {"height", height},
          {"width", width},
          {"num_frames", static_cast<double>(*request.num_frames)},
          {"ar", height / width}};
}

VideoSettings resolve(VideoRequest& request, const VideoInputs& inputs, const Version& version) {
  check_names(request, inputs);
  const VideoSize size = default_size(request, inputs);
  VideoSettings settings;
  settings.height = inputs.height.value_or(size.height);
  settings.width = inputs.width.value_or(size.width);
  // The size has now been chosen; other processes get the request with it.
  request.resolution.reset();
  request.aspect_ratio.reset();
  request.num_frames = request.num_frames.value_or(default_frames(inputs, version));
  request.fps = request.fps.value_or(kFps);
  if (!request.frame_interval) request.frame_interval = version.frame_interval;
  if (!request.aesthetic_score) request.aesthetic_score = version.aesthetic_score;
  settings.shown_fps = *request.fps / static_cast<double>(request.frame_interval.value_or(1));
  settings.conditions = conditions_of(settings, request);
  warn_of_size(settings, inputs.scale.pixels);
  resolve_loops(settings, request, inputs, version);
  bool has_given = settings.loops > 1 || !request.mask_strategies.empty();
  for (size_t i = 0; i < inputs.prompts.size(); ++i) {
    const PromptSettings own = split_settings(inputs.prompts[i]);
    has_given |= own.mask_strategy.has_value();
    add_references(settings, own, request, i);
    add_texts(settings, own.text, request);
    settings.published_prompts.push_back(prompt_without_folders(inputs.prompts[i]));
  }
  for (const std::string& paths : request.reference_paths)
    settings.published_paths.push_back(paths_without_folders(paths));
  if (version.aligns)
    choose_align(settings, request, has_given, inputs.scale.latent_frames(inputs.scale.clip));
  return settings;
}

}  // namespace

VideoSettings resolve_open_sora_1_1_video(VideoRequest& request, const VideoInputs& inputs) {
  return resolve(request, inputs, {.frames = 16, .condition_frames = 4, .frame_interval = 3});
}

VideoSettings resolve_open_sora_1_2_video(VideoRequest& request, const VideoInputs& inputs) {
  return resolve(request, inputs,
                 {.frames = 51, .condition_frames = 5, .aesthetic_score = 6.5, .aligns = true});
}

}  // namespace tessera::models
