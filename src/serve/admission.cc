#include "serve/admission.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "engine/batch.h"
#include "job/outputs.h"
#include "media/still_image.h"
#include "media/video_writer.h"
#include "parallel/layout.h"
#include "serve/encoder.h"

namespace tessera::serve {
namespace {

constexpr int64_t kMostOptions = 64;
// A video may have as many pixels as this many of the largest pictures.
constexpr int64_t kMostLargePictures = 64;

// This check precedes the model's, so that a large request costs nothing.
void check_given(const engine::Request& request, const RequestLimits& limits) {
  const auto check = [](const char* name, int64_t value, int64_t most) {
    if (value > most) usage_error(field(name), "must be at most {} on this server, got {}", most, value);
  };
  const auto check_texts = [&](const char* name, const std::vector<std::string>& texts, int64_t most) {
    if (std::ssize(texts) > most)
      usage_error(field(name), "{} texts, at most {} on this server", texts.size(), most);
    for (const std::string& text : texts) {
      if (std::ssize(text) > limits.prompt_bytes)
        usage_error(field(name), "a text has {} bytes, at most {} on this server", text.size(),
                    limits.prompt_bytes);
    }
  };
  check_texts("prompt", request.prompts, limits.pictures);
  check_texts("negative_prompt", request.negative_prompts, limits.pictures);
  check_texts("prompt_2", request.other_prompts[0], limits.pictures);
  check_texts("negative_prompt_2", request.other_negative_prompts[0], limits.pictures);
  check_texts("scheduler_option", request.scheduler_options, kMostOptions);
  check("num_images_per_prompt", request.num_images_per_prompt, limits.pictures);
  check("num_inference_steps", request.num_inference_steps.value_or(1), limits.steps);
  check("num_frames", request.video.num_frames.value_or(1), limits.frames);
}

void check_resolved(const engine::Settings& settings, const RequestLimits& limits) {
  if (settings.width * settings.height > limits.pixels)
    usage_error(field("width"), "{} x {} pixels, at most {} on this server", settings.width, settings.height,
                limits.pixels);
  const int64_t pixels = settings.width * settings.height;
  const int64_t frames = std::min(limits.frames, kMostLargePictures * limits.pixels / pixels);
  if (settings.all_frames() > frames)
    usage_error(field("num_frames"), "{} frames of {} x {} pixels, at most {} on this server",
                settings.all_frames(), settings.width, settings.height, frames);
  if (settings.steps > limits.steps)  // the model may have chosen them
    usage_error(field("num_inference_steps"), "{} steps, at most {} on this server", settings.steps,
                limits.steps);
  if (settings.pictures() > limits.pictures)
    usage_error(field(std::ssize(settings.request.prompts) > 1 ? "prompt" : "num_images_per_prompt"),
                "{} results, at most {} on this server", settings.pictures(), limits.pictures);
}

// The prompt of a video may end in JSON that names files, but clients must not reach files of the server.
void check_files(const engine::Settings& settings) {
  const std::vector<std::string>& uploads = settings.request.video.reference_paths;
  for (const std::vector<std::string>& paths : settings.video.references) {
    for (const std::string& path : paths) {
      if (std::find(uploads.begin(), uploads.end(), path) == uploads.end())
        usage_error(field("prompt"), "names the file '{}': files of the server are not read", path);
    }
  }
}

// A world has loaded the weights in one dtype, on one device.
void take_machine(engine::Request& request, const engine::Request& of_server) {
  if (request.dtype && request.dtype != of_server.dtype)
    usage_error(field("dtype"), "this server computes in {}; leave it out",
                of_server.dtype ? engine::dtype_name(*of_server.dtype) : "the dtype of its device");
  request.dtype = of_server.dtype;
  if (!request.device.is_cpu() && request.device != of_server.device)
    usage_error(field("device"), "this server computes on {}; leave it out", of_server.device.str());
  request.device = of_server.device;
}

std::string choose_suffix(const std::string& wanted, const engine::Settings& settings) {
  const bool moves = settings.all_frames() > 1;
  if (wanted.empty()) return moves ? ".mp4" : ".png";
  const std::vector<std::string> suffixes = moves ? std::vector<std::string>{".mp4", ".webm", ".gif"}
                                                  : std::vector<std::string>{".png", ".jpg", ".webp"};
  if (std::find(suffixes.begin(), suffixes.end(), wanted) == suffixes.end())
    usage_error(field("format"), "{} have the formats {}, got '{}'", moves ? "videos" : "pictures",
                moves ? "mp4, webm and gif" : "png, jpg and webp", wanted);
  return wanted;
}

void require_encodable(const std::string& suffix, const engine::Settings& settings, const job::Job& base) {
  const std::string name = "result" + suffix;
  if (suffix == ".png") return;
  const ImageText text = Encoder::text_of(base, settings, 0);
  if (media::is_image_path(name))
    return media::require_encodable(name, settings.height, settings.width, text);
  if (suffix == ".gif" && settings.video.shown_fps > media::kMostGifFps)
    usage_error(field("fps"), "a GIF shows at most {} frames a second, got {}", media::kMostGifFps,
                settings.video.shown_fps);
  media::require_encodable(name, job::video_format(settings, text));
}

// Runs whose ranks work with activations of earlier steps, and videos that begin with given frames, cannot be
// saved (engine/session.h).
bool may_be_saved(const engine::Settings& settings, const parallel::Layout& layout) {
  return layout.is_exact() && !settings.has_given();
}

Admitted admit_or_throw(const JobRequest& job, const job::Job& base, const RequestLimits& limits) {
  engine::Request request = job.request;
  check_given(request, limits);
  take_machine(request, base.arguments.request);
  if (request.output_type == engine::OutputType::kLatent)
    usage_error(field("output_type"), "a server makes images and videos; leave it out");
  const auto settings = std::make_shared<const engine::Settings>(engine::resolve(request, base.model));
  check_resolved(*settings, limits);
  check_files(*settings);
  const parallel::Workload workload = engine::workload(*settings, base.model);
  const parallel::Layout layout = parallel::resolve_layout(base.arguments.parallel, workload, std::nullopt);
  Admitted admitted{.settings = settings, .layout = layout, .suffix = choose_suffix(job.suffix, *settings)};
  for (const std::string& each : settings->warnings)
    admitted.warnings.push_back(spell(without_paths(each, request, base.model)));
  require_encodable(admitted.suffix, *settings, base);
  // If two keys had the same hash, little would be lost: worlds compare the requests of a run themselves.
  admitted.batch_key = hash_of({engine::batch_key(*settings)});
  admitted.work = static_cast<double>(settings->model_width * settings->model_height * settings->frames *
                                      settings->pictures() * (settings->guided() ? 2 : 1));
  admitted.may_be_saved = may_be_saved(*settings, layout);
  return admitted;
}

}  // namespace

std::variant<Admitted, JobRefusal> admit(const JobRequest& request, const job::Job& base,
                                         const RequestLimits& limits) {
  try {
    return admit_or_throw(request, base, limits);
  } catch (const Error& error) {
    const std::string message = without_paths(error.message(), request.request, base.model);
    const std::vector<std::string> fields = fields_in(message);
    return JobRefusal{.error = {.code = "invalid_value", .message = message, .status = 400},
                      .parameter = fields.empty() ? "" : fields.front()};
  } catch (const std::exception& error) {  // a bug must not end the server
    log_warning("{}", error.what());
    return JobRefusal{.error = {.code = "failed", .message = "the server has failed at this request"}};
  }
}

std::string without_paths(std::string message, const engine::Request& request, const engine::Model& model) {
  const auto replace = [&message](const std::string& text, const std::string& by) {
    for (size_t at = 0; (at = message.find(text, at)) != std::string::npos; at += by.size())
      message.replace(at, text.size(), by);
  };
  const auto replace_all = [&](const std::vector<std::string>& files, const char* name) {
    for (auto file = files.rbegin(); file != files.rend(); ++file)  // "image-10" before "image-1"
      replace(*file, field(name));
  };
  replace_all(request.images, "image");
  replace_all(request.video.reference_paths, "reference");
  replace(field("reference_path"), field("reference"));
  std::vector<std::filesystem::path> folders = {model.folder};
  if (model.single_file) folders.push_back(model.single_file->path().parent_path());
  for (const std::filesystem::path& folder : folders) {
    for (const std::string before : {"[", "'"}) replace(before + (folder / "").string(), before);
  }
  return message;
}

JobView view_of(const JobRequest& request, const Admitted& admitted) {
  const engine::Settings& settings = *admitted.settings;
  JobView view;
  view.request = request;
  view.request.request = settings.request;
  view.request.suffix = admitted.suffix;
  view.request.images.clear();
  view.request.references.clear();
  view.warnings = admitted.warnings;
  view.steps = settings.steps;
  view.pictures = settings.pictures();
  view.width = settings.width;
  view.height = settings.height;
  view.frames = settings.all_frames();
  view.seeds.assign(static_cast<size_t>(view.pictures), *settings.request.seed);
  return view;
}

}  // namespace tessera::serve
