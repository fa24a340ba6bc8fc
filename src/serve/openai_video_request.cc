#include "serve/openai_video_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/text.h"
#include "serve/openai_image_request.h"

namespace tessera::serve {
namespace {

constexpr double kMostSeconds = 120;

// The rate at which the file shows them.
double frames_per_second(const engine::Request& request, const ModelTraits& model) {
  const auto interval = request.video.frame_interval.value_or(model.frame_interval);
  return request.video.fps.value_or(model.fps) / static_cast<double>(interval);
}

// `seconds` is a text in OpenAI's API.
void read_seconds(ApiFields& fields, engine::Request& request, const ModelTraits& model) {
  const Json* const value = fields.value("seconds");
  if (!value) return;
  double seconds = 0;
  if (value->is_string()) {
    const auto text = value->get<std::string>();
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, seconds);
    if (read.ec != std::errc() || read.ptr != end) seconds = 0;
  } else if (value->is_number()) {
    seconds = value->get<double>();
  }
  if (!(seconds > 0 && seconds <= kMostSeconds))
    fields.refuse("seconds", fmt::format("must be a number of seconds up to {}", kMostSeconds));
  if (request.video.num_frames) fields.refuse("seconds", "and num_frames cannot both be given");
  const double frames = std::round(seconds * frames_per_second(request, model));
  request.video.num_frames = std::max<int64_t>(1, static_cast<int64_t>(frames));
}

// A picture with which the video begins: a file of a form, or an image_url that contains it.
void read_reference(const ApiBody& body, ApiFields& fields, JobRequest& job,
                    std::vector<std::string>& warnings) {
  for (const FormPart& part : body.files) {
    if (part.name != "input_reference")
      warnings.push_back(fmt::format("{} is unknown and has no effect", printable(part.name)));
    else
      job.references.emplace_back(part.data);
  }
  if (const Json* const reference = fields.value("input_reference")) {
    const auto url = reference->is_object() ? reference->find("image_url") : reference->end();
    const bool has_url = reference->is_object() && url != reference->end() && url->is_string();
    auto bytes = has_url && url->get<std::string>().starts_with("data:")
                     ? picture_of_text(url->get<std::string>())
                     : std::nullopt;
    if (!bytes)
      fields.refuse("input_reference",
                    "must be a file, or an image_url that is a data: URL; this server fetches nothing");
    job.references.push_back(std::move(*bytes));
  }
  if (job.references.size() > 1) fields.refuse("input_reference", "may occur once");
  for (const std::string& bytes : job.references) require_picture(bytes, "input_reference");
  if (!job.references.empty() && job.request.video.mask_strategies.empty())
    job.request.video.mask_strategies = {"0"};
}

std::string_view status_of(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "queued";
    case JobState::kRunning:
    case JobState::kEncoding:
      return "in_progress";
    case JobState::kSucceeded:
      return "completed";
    default:
      return "failed";
  }
}

int64_t progress_of(const JobView& job) {
  if (job.state == JobState::kSucceeded) return 100;
  return job.steps > 0 ? std::clamp<int64_t>(job.step * 100 / job.steps, 0, 99) : 0;
}

OrderedJson optional_seconds(const std::optional<WallTime>& time) {
  return time ? OrderedJson(seconds_of(*time)) : OrderedJson();
}

}  // namespace

JobRequest read_video_creation(const ApiBody& body, const ModelTraits& model) {
  if (!model.makes_videos)
    throw ApiError(400, "unsupported_operation",
                   fmt::format("the model {} makes pictures; POST /v1/images/generations takes its requests",
                               model.name));
  ApiFields fields(body.fields, 400, body.is_form);
  JobRequest job;
  std::vector<std::string> warnings;
  require_model(fields, model);
  if (!fields.value("prompt")) fields.refuse("prompt", "is missing", "missing_required_parameter");
  set_prompt(fields, "prompt", job.request);
  if (const auto size = read_size(fields, "size")) {
    job.request.width = size->width;
    job.request.height = size->height;
  }
  read_engine_fields(fields, job.request, {"prompt", "num_images_per_prompt"});
  read_seconds(fields, job.request, model);
  read_reference(body, fields, job, warnings);
  fields.ignore({"user", "safety_identifier"});
  for (const std::string& name : fields.unread())
    warnings.push_back(fmt::format("{} is unknown and has no effect", printable(cut_utf8(name, 60))));
  OrderedJson echo = {{"prompt", job.request.prompts.front()}};
  if (!warnings.empty()) echo["warnings"] = warnings;
  job.echo = dump(echo);
  job.api = "videos";
  return job;
}

VideoList read_video_list(const HttpRequest& request) {
  VideoList list;
  const std::string_view limit = text_of(request.query, "limit"), order = text_of(request.query, "order");
  const char* const end = limit.data() + limit.size();
  const auto read = std::from_chars(limit.data(), end, list.limit);
  if (!limit.empty() && (read.ec != std::errc() || read.ptr != end || list.limit < 0 || list.limit > 100))
    throw ApiError(400, "invalid_value", "'limit' must be an integer from 0 to 100", "limit");
  if (!order.empty() && order != "asc" && order != "desc")
    throw ApiError(400, "invalid_value", "'order' must be asc or desc", "order");
  list.filter.api = "videos";
  list.filter.after = text_of(request.query, "after");
  list.filter.limit = list.limit + 1;
  list.filter.newest_first = order != "asc";
  return list;
}

OrderedJson video_object(const JobView& job, const ModelTraits& model) {
  const OrderedJson echo = OrderedJson::parse(job.request.echo, nullptr, false);
  const auto of_echo = [&](const char* name) {
    return echo.is_object() && echo.contains(name) ? echo.at(name) : OrderedJson();
  };
  const double seconds = static_cast<double>(job.frames) / frames_per_second(job.request.request, model);
  OrderedJson error;
  if (job.error) error = {{"code", job.error->code}, {"message", job.error->message}};
  OrderedJson video = {
      {"id", job.id},
      {"object", "video"},
      {"model", model.name},
      {"status", status_of(job.state)},
      {"progress", progress_of(job)},
      {"created_at", seconds_of(job.accepted)},
      {"completed_at", job.state == JobState::kSucceeded ? optional_seconds(job.ended) : OrderedJson()},
      {"expires_at", optional_seconds(job.expires)},
      {"prompt", of_echo("prompt")},
      {"size", size_text(job)},
      {"seconds", fmt::format("{:.6g}", seconds)},
      {"remixed_from_video_id", nullptr},
      {"error", std::move(error)}};
  const OrderedJson own = of_echo("warnings");
  const std::vector<std::string> warnings =
      with_warnings_of(job, own.is_null() ? std::vector<std::string>() : own.get<std::vector<std::string>>());
  if (!warnings.empty()) video["warnings"] = warnings;
  return video;
}

OrderedJson video_list(const VideoList& list, std::vector<JobView> jobs, const ModelTraits& model) {
  const bool has_more = std::ssize(jobs) > list.limit;
  if (has_more) jobs.resize(static_cast<size_t>(list.limit));
  OrderedJson data = OrderedJson::array();
  for (const JobView& job : jobs) data.push_back(video_object(job, model));
  return {{"object", "list"},
          {"data", std::move(data)},
          {"first_id", jobs.empty() ? OrderedJson() : OrderedJson(jobs.front().id)},
          {"last_id", jobs.empty() ? OrderedJson() : OrderedJson(jobs.back().id)},
          {"has_more", has_more}};
}

}  // namespace tessera::serve
