#include "serve/openai_image_request.h"

#include <algorithm>

#include "core/text.h"

namespace tessera::serve {
namespace {

constexpr int64_t kMostPictures = 10, kMostPartials = 3, kMostReferences = 16;

// Each encoder has a single quality.
void read_compression(ApiFields& fields, ImageCall& call) {
  const auto compression = fields.integer("output_compression", 0, 100);
  if (!compression || call.output_format == "png") {
    if (compression) call.warnings.emplace_back("output_compression has no effect on png");
    return;
  }
  if (*compression != 100)
    fields.refuse("output_compression",
                  fmt::format("cannot be {}: {} is written with a fixed quality; leave it out", *compression,
                              call.output_format),
                  "unsupported_value");
  call.warnings.push_back(
      fmt::format("output_compression has no effect: {} is written with quality 95", call.output_format));
}

void read_format(ApiFields& fields, ImageCall& call) {
  if (const auto format = fields.choice("output_format", {"png", "jpeg", "webp"}))
    call.output_format = *format;
  read_compression(fields, call);
  call.job.suffix = call.output_format == "jpeg" ? ".jpg" : "." + call.output_format;
  // By default the answer has both forms, since older clients read one and newer clients the other.
  const auto answer = fields.choice("response_format", {"url", "b64_json"});
  call.with_bytes = answer != "url";
  call.with_urls = answer != "b64_json";
  call.is_streamed = fields.flag("stream").value_or(false);
  call.partial_images = fields.integer("partial_images", 0, kMostPartials).value_or(0);
  if (call.partial_images > 0 && !call.is_streamed) fields.refuse("partial_images", "needs \"stream\": true");
  if (call.is_streamed) call.with_urls = false;
  call.job.is_stored = call.with_urls;
}

// Fields that describe how a picture should look in words that no model here reads.
void read_without_effect(ApiFields& fields, ImageCall& call) {
  if (fields.choice("background", {"transparent", "opaque", "auto"}) == "transparent")
    fields.refuse("background", "cannot be transparent: pictures have no alpha", "unsupported_value");
  call.quality = fields.choice("quality", {"standard", "hd", "low", "medium", "high", "xhigh", "max", "auto"})
                     .value_or("auto");
  if (call.quality != "auto") call.warnings.emplace_back("quality has no effect; num_inference_steps has");
  for (const char* const name : {"style", "input_fidelity"}) {
    if (fields.value(name)) call.warnings.push_back(fmt::format("{} has no effect", name));
  }
  fields.ignore({"moderation", "user", "safety_identifier"});
}

ImageCall read_common(ApiFields& fields, const ModelTraits& model, const ApiOptions& options) {
  if (model.makes_videos)
    throw ApiError(400, "unsupported_operation",
                   fmt::format("the model {} makes videos; POST /v1/videos takes its requests", model.name));
  ImageCall call;
  require_model(fields, model);
  if (!fields.value("prompt")) fields.refuse("prompt", "is missing", "missing_required_parameter");
  engine::Request& request = call.job.request;
  set_prompt(fields, "prompt", request);
  const int64_t most = std::min(kMostPictures, options.max_pictures);
  request.num_images_per_prompt = fields.integer("n", 1, most).value_or(1);
  if (const auto size = read_size(fields, "size")) {
    request.width = size->width;
    request.height = size->height;
  }
  read_format(fields, call);
  read_without_effect(fields, call);
  read_engine_fields(fields, request, {"prompt", "width", "height", "num_images_per_prompt"});
  call.job.api = "images";
  call.job.is_awaited = true;
  return call;
}

void warn_of_unread(const ApiFields& fields, ImageCall& call) {
  for (const std::string& name : fields.unread())
    call.warnings.push_back(fmt::format("{} is unknown and has no effect", printable(cut_utf8(name, 60))));
}

// A picture in the JSON of an edit, {"image_url": URL}; the URL must contain the picture itself.
std::string picture_of(const ApiFields& fields, const Json& item) {
  const auto url = item.is_object() ? item.find("image_url") : item.end();
  if (!item.is_object() || url == item.end() || !url->is_string())
    fields.refuse("images", "must be objects with an image_url that is a data: URL; there are no file ids");
  const auto text = url->get<std::string>();
  auto bytes = text.starts_with("data:") ? picture_of_text(text) : std::nullopt;
  if (!bytes)
    fields.refuse("images", "must be data: URLs in Base64; this server fetches nothing", "invalid_image");
  return std::move(*bytes);
}

void read_pictures(const ApiBody& body, ApiFields& fields, ImageCall& call) {
  for (const FormPart& part : body.files) {
    if (part.name == "mask")
      fields.refuse("mask", "is not supported: the model edits whole pictures", "unsupported_operation");
    if (part.name != "image" && part.name != "image[]")
      call.warnings.push_back(fmt::format("{} is unknown and has no effect", printable(part.name)));
    else
      call.job.images.emplace_back(part.data);
  }
  if (const Json* const images = fields.value("images")) {
    if (!images->is_array()) fields.refuse("images", "must be a list");
    for (const Json& item : *images) call.job.images.push_back(picture_of(fields, item));
  }
  if (fields.value("mask"))
    fields.refuse("mask", "is not supported: the model edits whole pictures", "unsupported_operation");
  const std::string name = body.is_form ? "image" : "images";
  if (call.job.images.empty() || std::ssize(call.job.images) > kMostReferences)
    fields.refuse(name,
                  fmt::format("must be 1 to {} pictures, got {}", kMostReferences, call.job.images.size()));
  for (const std::string& bytes : call.job.images) require_picture(bytes, name);
}

OrderedJson usage() {
  return {{"total_tokens", 0},
          {"input_tokens", 0},
          {"output_tokens", 0},
          {"input_tokens_details", {{"text_tokens", 0}, {"image_tokens", 0}}}};
}

std::string event_quality(const ImageCall& call) {
  return call.quality == "low" || call.quality == "medium" || call.quality == "high" ? call.quality : "auto";
}

OrderedJson event_of(const ImageCall& call, const JobView& job, std::string_view type, std::string_view bytes,
                     std::string_view format) {
  return {
      {"type", type},           {"b64_json", encode_base64(bytes)}, {"created_at", seconds_of(job.accepted)},
      {"size", size_text(job)}, {"quality", event_quality(call)},   {"background", "opaque"},
      {"output_format", format}};
}

// Puts the files where the text has an empty "b64_json" for each of them. To write JSON takes some ns for
// each byte of a text, which may need an escape; Base64 needs none, and megabytes of it would hold up the
// server's thread.
std::string put_pictures(std::string_view json,
                         const std::vector<std::shared_ptr<const std::string>>& files) {
  constexpr std::string_view kEmpty = R"("b64_json":"")";  // in no text: quotes have a backslash there
  std::string result;
  for (const auto& file : files) {
    const size_t end = file ? json.find(kEmpty) : std::string_view::npos;
    if (end == std::string_view::npos) continue;
    const size_t before = end + kEmpty.size() - 1;
    result.append(json.substr(0, before)).append(encode_base64(*file));
    json.remove_prefix(before);
  }
  return result.append(json);
}

void add_warnings(OrderedJson& answer, const ImageCall& call, const JobView& job) {
  const std::vector<std::string> warnings = with_warnings_of(job, call.warnings);
  if (!warnings.empty()) answer["warnings"] = warnings;
}

}  // namespace

void require_model(ApiFields& fields, const ModelTraits& model) {
  const std::string name = fields.text("model").value_or("");
  if (!name.empty() && name != model.name)
    throw ApiError(
        404, "model_not_found",
        fmt::format("there is no model '{}'; this server has {}", printable(cut_utf8(name, 60)), model.name),
        "model");
}

ImageCall read_image_generation(const Json& object, const ModelTraits& model, const ApiOptions& options) {
  ApiFields fields(object, 400);
  ImageCall call = read_common(fields, model, options);
  warn_of_unread(fields, call);
  return call;
}

ImageCall read_image_edit(const ApiBody& body, const ModelTraits& model, const ApiOptions& options) {
  if (!model.takes_pictures)
    throw ApiError(400, "unsupported_operation",
                   fmt::format("the model {} takes no pictures, so it cannot edit one", model.name));
  ApiFields fields(body.fields, 400, body.is_form);
  ImageCall call = read_common(fields, model, options);
  read_pictures(body, fields, call);
  warn_of_unread(fields, call);
  return call;
}

std::string size_text(const JobView& job) {
  return fmt::format("{}x{}", job.width, job.height);
}

std::string image_answer(const ImageCall& call, const JobView& job,
                         const std::vector<std::shared_ptr<const std::string>>& files,
                         const std::string& url) {
  OrderedJson data = OrderedJson::array();
  for (size_t i = 0; i < files.size(); ++i) {
    OrderedJson each = OrderedJson::object();
    if (call.with_bytes && files[i]) each["b64_json"] = "";  // put_pictures()
    if (call.with_urls) each["url"] = fmt::format("{}?index={}", url, i);
    if (i < job.seeds.size()) each["seed"] = job.seeds[i];
    data.push_back(std::move(each));
  }
  OrderedJson answer = {{"created", seconds_of(job.accepted)},
                        {"data", std::move(data)},
                        {"background", "opaque"},
                        {"output_format", call.output_format},
                        {"size", size_text(job)}};
  // Clients know only these words.
  if (event_quality(call) != "auto") answer["quality"] = call.quality;
  answer["usage"] = usage();
  answer["id"] = job.id;
  const auto seconds = [](WallTime from, WallTime to) { return Seconds(to - from).count(); };
  if (job.started) answer["queue_time_s"] = seconds(job.accepted, *job.started);
  if (job.started && job.ended) answer["inference_time_s"] = seconds(*job.started, *job.ended);
  add_warnings(answer, call, job);
  return call.with_bytes ? put_pictures(dump(answer), files) : dump(answer);
}

OrderedJson partial_image_event(const ImageCall& call, const JobView& job, int64_t image, int64_t partial,
                                std::string_view jpeg, std::string_view type) {
  OrderedJson event = event_of(call, job, type, jpeg, "jpeg");
  event["partial_image_index"] = partial;
  event["image_index"] = image;
  return event;
}

OrderedJson completed_image_event(const ImageCall& call, const JobView& job, int64_t image,
                                  std::string_view file, std::string_view type) {
  OrderedJson event = event_of(call, job, type, file, call.output_format);
  event["usage"] = usage();
  event["image_index"] = image;
  if (static_cast<size_t>(image) < job.seeds.size()) event["seed"] = job.seeds[static_cast<size_t>(image)];
  add_warnings(event, call, job);
  return event;
}

}  // namespace tessera::serve
