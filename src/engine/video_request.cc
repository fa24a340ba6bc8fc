// This file holds what of a request concerns videos alone.
#include <ATen/Functions.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/error.h"
#include "core/user_text.h"
#include "engine/effects.h"
#include "engine/prompt_settings.h"
#include "engine/request.h"
#include "models/stdit/sizes.h"

namespace tessera::engine {
namespace {

// Where neither the request nor the model says more, as Open-Sora is published.
constexpr const char* kResolution = "240p";
constexpr const char* kAspectRatio = "9:16";
constexpr double kFps = 24, kAestheticScore = 6.5;
constexpr int64_t kFrameInterval = 3;

// A size is given in pixels or by its name, but not both.
void check_names(const Request& request) {
  if (!request.resolution && !request.aspect_ratio) return;
  const char* const name = request.resolution ? "resolution" : "aspect_ratio";
  const std::string& value = request.resolution ? *request.resolution : *request.aspect_ratio;
  if (request.height || request.width)
    usage_error(field(name), "'{}' is a size by name; leave out {} and {}, or give no name", value,
                field("height"), field("width"));
}

models::VideoSize default_size(const Request& request, const Model& model) {
  const auto& sample = model.shape.video_sample;
  if (sample && !request.resolution && !request.aspect_ratio)
    return {(*sample)[1] * model.scale.pixels, (*sample)[2] * model.scale.pixels};
  return models::video_size(request.resolution.value_or(kResolution),
                            request.aspect_ratio.value_or(kAspectRatio));
}

int64_t default_frames(const Model& model) {
  if (!model.shape.video_sample) return model.family->default_frames;
  const models::LatentScale& scale = model.scale;
  const int64_t latents = (*model.shape.video_sample)[0], of_clip = scale.latent_frames(scale.clip);
  return latents / of_clip * scale.clip + latents % of_clip * scale.frames;
}

// Any size is taken, as by the published code, whose own sizes have rows and columns that no latent covers.
void check_size(Settings& settings, const Model& model) {
  const Request& request = settings.request;
  const int64_t unit = model.scale.pixels;
  require_sides(request, [&](int64_t side) {
    return side < unit
               ? fmt::format("must be at least {}, got {}; the nearest valid size is {}", unit, side, unit)
               : "";
  });
  const models::VideoSize size{*request.height, *request.width};
  if ((size.height % unit == 0 && size.width % unit == 0) || models::is_video_size(size)) return;
  settings.warnings.push_back(fmt::format("frames will be {} x {}: sides are multiples of {}",
                                          size.width / unit * unit, size.height / unit * unit, unit));
}

// Sets what a long video is made of.
void resolve_loops(Settings& settings, const Model& model) {
  Request& request = settings.request;
  const int64_t of_clip = model.scale.latent_frames(model.scale.clip);
  request.loop = request.loop.value_or(1);
  if (uses_field(model, settings.scheduler, "align") && has_given_frames(request))
    request.align = request.align.value_or(of_clip);
  settings.loops = *request.loop;
  if (settings.loops == 1) return;
  if (request.output_type == OutputType::kLatent)
    usage_error(field("loop"), "a video of {} parts is decoded between them; leave out {}", settings.loops,
                field("output_type"));
  request.condition_frame_length =
      request.condition_frame_length.value_or(model.family->default_condition_frames);
  request.condition_frame_edit = request.condition_frame_edit.value_or(0);
  const int64_t length = *request.condition_frame_length;
  if (length % of_clip != 0)
    usage_error(
        field("condition_frame_length"),
        "must be a multiple of the {} latent frames of a clip, got {}; the nearest valid length is {}",
        of_clip, length, of_clip * std::max<int64_t>(1, (length + of_clip / 2) / of_clip));
  settings.repeated = length / of_clip * model.scale.clip;
  if (settings.repeated >= settings.frames)
    usage_error(field("num_frames"),
                "a part of a long video must have more than the {} frames of the part before with which it "
                "begins, got {}; {} {} would do",
                settings.repeated, settings.frames, field("num_frames"),
                settings.repeated + model.scale.clip);
}

void trim_spaces(std::string& text) {
  const auto is_space = [](char c) { return c == ' '; };
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  text.erase(std::find_if_not(text.rbegin(), text.rend(), is_space).base(), text.end());
}

// Whether a prompt begins as one for parts, but with a later part than the first.
bool names_later_part(const std::string& prompt) {
  const size_t end = prompt.find_first_not_of("0123456789", 1);
  return prompt.starts_with('|') && !prompt.starts_with("|0|") && end > 1 && end < prompt.size() &&
         prompt[end] == '|';
}

// Sets the text of each prompt, its references and what is taken of them.
void resolve_references(Settings& settings) {
  const Request& request = settings.request;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    PromptSettings own = split_settings(request.prompts[i]);
    const auto choose = [&](std::optional<std::string>& value, const std::vector<std::string>& texts,
                            const char* name) {
      std::string where = value ? field("prompt") + ": " + name : field(name);
      if (!value) value = text_of(texts, i).value_or("");
      return where;
    };
    const std::string of_paths = choose(own.reference_path, request.reference_paths, "reference_path");
    const std::string of_strategy = choose(own.mask_strategy, request.mask_strategies, "mask_strategy");
    const std::vector<std::string> paths = split_paths(*own.reference_path);
    if (std::any_of(paths.begin(), paths.end(), [](const std::string& path) { return path.empty(); }))
      usage_error(of_paths, "'{}' names no file before or after a ';'", *own.reference_path);
    std::vector<GivenRange> given = parse_mask_strategy(*own.mask_strategy, of_strategy);
    if (!paths.empty() && given.empty())
      usage_error(of_paths, "'{}' has no effect without {}; \"0\" begins the video with it", paths.front(),
                  field("mask_strategy"));
    for (const GivenRange& range : given) {
      if (range.loop >= settings.loops)
        usage_error(of_strategy, "there is no part {}: the video has {} ({}), counted from 0", range.loop,
                    settings.loops, field("loop"));
      // Each part adds the one before to the list.
      const int64_t count = static_cast<int64_t>(paths.size()) + range.loop;
      if (count == 0)
        usage_error(of_strategy, "has no effect without {}, of which it takes frames",
                    field("reference_path"));
      if (range.reference >= count || range.reference < -count)
        usage_error(of_strategy, "there is no reference {}: the prompt has {} ({}), counted from 0",
                    range.reference, paths.size(), field("reference_path"));
    }
    if (names_later_part(own.text))
      settings.warnings.push_back(
          fmt::format("'{}' names no text for part 0, so it is one prompt for all parts; |0|TEXT names it",
                      printable(own.text)));
    // Refuses what is no prompt for parts.
    constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
    if (prompt_of_loop(own.text, settings.loops - 1) != prompt_of_loop(own.text, kLast))
      settings.warnings.push_back(fmt::format("'{}' has texts for more parts than the video's {} ({})",
                                              printable(own.text), settings.loops, field("loop")));
    settings.texts.push_back(std::move(own.text));
    settings.references.push_back(paths);
    settings.given.push_back(std::move(given));
  }
}

}  // namespace

std::string prompt_of_loop(const std::string& prompt, int64_t loop) {
  if (!prompt.starts_with("|0|")) return prompt;
  const auto refuse = [&] {
    usage_error(field("prompt"),
                "a prompt for the parts of a long video has the form |0|TEXT|3|TEXT, with parts in rising "
                "order, got '{}'",
                prompt);
  };
  std::string text;
  int64_t last = -1;
  for (size_t begin = 1; begin <= prompt.size();) {
    const size_t middle = prompt.find('|', begin);
    int64_t first = 0;
    const char* const stop = prompt.data() + std::min(middle, prompt.size());
    const auto read = std::from_chars(prompt.data() + begin, stop, first);
    if (middle == std::string::npos || read.ec != std::errc() || read.ptr != stop || first <= last) refuse();
    const size_t end = std::min(prompt.find('|', middle + 1), prompt.size());
    if (first <= loop) text = prompt.substr(middle + 1, end - middle - 1);
    last = first;
    begin = end + 1;
  }
  trim_spaces(text);
  return text;
}

bool Settings::has_given() const {
  return loops > 1 ||
         std::any_of(given.begin(), given.end(), [](const auto& ranges) { return !ranges.empty(); });
}

models::CaptionScores Settings::scores() const {
  const auto given = [](const std::optional<double>& score) {
    return score.value_or(0) > 0 ? score : std::nullopt;
  };
  return {given(request.aesthetic_score), given(request.motion_score), request.camera_motion};
}

void choose_sampling(Request& request, const Model& model) {
  const JsonConfig& file = model.scheduler;
  if (!request.num_inference_steps && file.has("num_sampling_steps"))
    request.num_inference_steps = file.integer("num_sampling_steps");
  if (!request.guidance_scale && file.has("cfg_scale")) request.guidance_scale = file.number("cfg_scale");
}

void resolve_video(Settings& settings, const Model& model) {
  Request& request = settings.request;
  const auto refuse_choice = [&](const char* name, const std::string& value) {
    usage_error(field(name), "{} has one sampler only ({}), got '{}'; leave it out", model.family->title,
                model.scheduler.string("_class_name"), printable(value));
  };
  if (request.scheduler) refuse_choice("scheduler", *request.scheduler);
  if (!request.scheduler_options.empty())
    refuse_choice("scheduler_option", request.scheduler_options.front());
  const int64_t longest = model.shape.text_length.value_or(*request.max_sequence_length);
  if (*request.max_sequence_length > longest)
    usage_error(field("max_sequence_length"), "must be at most the model's {}, got {}", longest,
                *request.max_sequence_length);
  check_names(request);
  const models::VideoSize size = default_size(request, model);
  request.height = request.height.value_or(size.height);
  request.width = request.width.value_or(size.width);
  // The size is chosen now; other ranks get the request with it.
  request.resolution.reset();
  request.aspect_ratio.reset();
  request.num_frames = request.num_frames.value_or(default_frames(model));
  request.fps = request.fps.value_or(kFps);
  if (uses_field(model, settings.scheduler, "frame_interval"))
    request.frame_interval = request.frame_interval.value_or(kFrameInterval);
  if (uses_field(model, settings.scheduler, "aesthetic_score"))
    request.aesthetic_score = request.aesthetic_score.value_or(kAestheticScore);
  check_size(settings, model);
  settings.model_height = *request.height;
  settings.model_width = *request.width;
  settings.frames = *request.num_frames;
  settings.latents = {.latent_height = settings.model_height / model.scale.pixels,
                      .latent_width = settings.model_width / model.scale.pixels,
                      .scale_factor = model.scale.pixels,
                      .latent_frames = model.scale.latent_frames(settings.frames)};
  settings.height = settings.latents.latent_height * model.scale.pixels;
  settings.width = settings.latents.latent_width * model.scale.pixels;
  settings.has_null_text = model.shape.has_null_text;
  resolve_loops(settings, model);
  resolve_references(settings);
}

std::unique_ptr<samplers::VideoSampler> make_video_sampler(const Settings& settings, const Model& model) {
  return samplers::make_video_sampler(model.scheduler, {.steps = settings.steps,
                                                        .height = static_cast<double>(settings.model_height),
                                                        .width = static_cast<double>(settings.model_width),
                                                        .num_frames = settings.frames});
}

std::map<std::string, at::Tensor> video_conditions(const Settings& settings) {
  // The published code tells the model of an image by this rate.
  constexpr double kFpsOfImages = 120;
  const auto number = [](double value) { return at::full({1}, value, at::kFloat); };
  return {
      {"fps", number(settings.frames == 1 ? kFpsOfImages : *settings.request.fps)},
      {"height", number(static_cast<double>(settings.model_height))},
      {"width", number(static_cast<double>(settings.model_width))},
      {"num_frames", number(static_cast<double>(settings.frames))},
      {"ar", number(static_cast<double>(settings.model_height) / static_cast<double>(settings.model_width))}};
}

}  // namespace tessera::engine
