#include "serve/api_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/text.h"

namespace tessera::serve {
namespace {

constexpr size_t kMaxPrompt = 128 << 10;  // bytes: 32,000 characters of any script

std::string shown(const Json& value) {
  constexpr size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return printable(text.size() > kMost ? std::string(cut_utf8(text, kMost)) + "..." : text);
}

bool is_finite(const Json& value) {
  if (value.is_number_float()) return std::isfinite(value.get<double>());
  return !value.is_structured() || std::all_of(value.begin(), value.end(), is_finite);
}

Json parse_object(std::string_view text) {
  Json json;
  try {
    json = parse_json(text, "body");
  } catch (const Error& error) {
    throw ApiError(400, "invalid_json", error.what());
  }
  if (!json.is_object()) throw ApiError(400, "invalid_json", "the body must be a JSON object");
  if (!is_finite(json)) throw ApiError(400, "invalid_json", "the body has a number that is not finite");
  return json;
}

bool has_type(const HttpRequest& request, std::string_view type) {
  const std::string_view header = request.header("content-type");
  return equal_names(header.substr(0, header.find_first_of("; ")), type);
}

// Puts a field of a form at the place that its name gives: "a", "a[]" or "a[b]".
void add_form_field(Json& fields, const std::string& name, std::string_view value) {
  const size_t open = name.find('[');
  if (open == std::string::npos || open == 0 || !name.ends_with("]")) {
    fields[name] = value;
    return;
  }
  Json& outer = fields[name.substr(0, open)];
  const std::string key = name.substr(open + 1, name.size() - open - 2);
  if (key.empty() ? !outer.is_array() : !outer.is_object())
    outer = key.empty() ? Json::array() : Json::object();
  if (key.empty()) {
    outer.push_back(value);
  } else {
    outer[key] = value;
  }
}

// Returns the JSON value of a form's field for a field of this kind, or the text itself if it is not valid.
Json typed(FieldKind kind, const Json& value) {
  if (!value.is_string() || kind == FieldKind::kText || kind == FieldKind::kTexts) return value;
  try {
    Json json = parse_json(value.get<std::string>(), "");
    return json.is_number() || json.is_boolean() ? json : value;
  } catch (const Error&) {
    return value;
  }
}

bool is_clients(const FieldInfo& info) {
  const auto& group = info.group;
  return group == FieldGroup::kPrompt || group == FieldGroup::kImage || group == FieldGroup::kVideo ||
         group == FieldGroup::kSampling;
}

}  // namespace

std::vector<std::string> with_warnings_of(const JobView& job, std::vector<std::string> own) {
  for (const std::string& each : job.warnings) {
    if (std::find(own.begin(), own.end(), each) == own.end()) own.push_back(each);
  }
  return own;
}

const Json* ApiFields::value(const std::string& name) {
  read_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> ApiFields::text(const std::string& name) {
  const Json* const found = value(name);
  if (!found) return std::nullopt;
  if (!found->is_string()) expected(name, "a text");
  return found->get<std::string>();
}

std::optional<bool> ApiFields::flag(const std::string& name) {
  const Json* const found = value(name);
  if (!found) return std::nullopt;
  if (are_texts_ && (*found == "true" || *found == "false")) return *found == "true";
  if (!found->is_boolean()) expected(name, "true or false");
  return found->get<bool>();
}

Json ApiFields::number_of(const std::string& name, const Json& value) const {
  Json number = are_texts_ ? typed(FieldKind::kNumber, value) : value;
  if (!number.is_number() || !is_finite(number)) expected(name, "a number");
  return number;
}

std::optional<int64_t> ApiFields::integer(const std::string& name, int64_t least, int64_t most) {
  const Json* const found = value(name);
  if (!found) return std::nullopt;
  const auto number = number_of(name, *found).get<double>();
  const std::string range = fmt::format("an integer from {} to {}", least, most);
  if (std::trunc(number) != number || number < static_cast<double>(least) ||
      number > static_cast<double>(most))
    expected(name, range);
  return static_cast<int64_t>(number);
}

std::optional<double> ApiFields::number(const std::string& name, double least, double most) {
  const Json* const found = value(name);
  if (!found) return std::nullopt;
  const auto number = number_of(name, *found).get<double>();
  if (!(number >= least && number <= most))
    expected(name, fmt::format("a number from {} to {}", least, most));
  return number;
}

std::optional<std::string> ApiFields::choice(const std::string& name,
                                             std::initializer_list<std::string_view> choices) {
  std::optional<std::string> given = text(name);
  if (given && std::find(choices.begin(), choices.end(), *given) == choices.end())
    expected(name, fmt::format("one of {}", fmt::join(choices, ", ")));
  return given;
}

void ApiFields::ignore(std::initializer_list<const char*> names) {
  for (const char* const name : names) value(name);
}

std::vector<std::string> ApiFields::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (!value.is_null() && !read_.contains(name)) names.push_back(name);
  }
  return names;
}

void ApiFields::refuse(const std::string& name, const std::string& why, const std::string& code) const {
  throw ApiError(status_, code, fmt::format("'{}' {}", printable(name), why), name);
}

void ApiFields::expected(const std::string& name, const std::string& what) const {
  refuse(name, fmt::format("must be {}, got {}", what, shown(object_.at(name))));
}

Json read_json_body(const HttpRequest& request) {
  if (!has_type(request, "application/json"))
    throw ApiError(415, "unsupported_media_type",
                   "the body must be JSON; send it with Content-Type: application/json");
  return parse_object(request.body);
}

ApiBody read_body(const HttpRequest& request) {
  ApiBody body;
  if (!has_type(request, "multipart/form-data")) {
    if (!has_type(request, "application/json"))
      throw ApiError(415, "unsupported_media_type",
                     "the body must be application/json or multipart/form-data; say which in Content-Type");
    body.fields = parse_object(request.body);
    return body;
  }
  auto parts = parse_form(request.header("content-type"), request.body);
  if (!parts) throw ApiError(400, "invalid_form", "the body is not a whole form of multipart/form-data");
  body.is_form = true;
  for (FormPart& part : *parts) {
    if (part.file_name) {
      body.files.push_back(std::move(part));
      continue;
    }
    if (find_invalid_utf8(part.data) || find_invalid_utf8(part.name))
      throw ApiError(400, "invalid_form", "a field of the form is not UTF-8", printable(part.name));
    add_form_field(body.fields, part.name, part.data);
  }
  return body;
}

void read_resend_of(const HttpRequest& request, const ApiBody& body, JobRequest& job) {
  read_resend(request, job);
  if (!body.is_form) return;
  std::string hash = hash_of({request.path, body.fields.dump()});
  for (const FormPart& part : body.files) hash = hash_of({hash, part.name, part.data});
  job.body_hash = std::move(hash);
}

std::optional<PictureSize> read_size(ApiFields& fields, const std::string& name) {
  const auto text = fields.text(name);
  if (!text || *text == "auto" || text->empty()) return std::nullopt;
  PictureSize size = {};
  const char* const end = text->data() + text->size();
  const auto width = std::from_chars(text->data(), end, size.width);
  const bool is_pair = width.ec == std::errc() && width.ptr != end && *width.ptr == 'x';
  const auto height = is_pair ? std::from_chars(width.ptr + 1, end, size.height) : width;
  if (!is_pair || height.ec != std::errc() || height.ptr != end || size.width < 1 || size.height < 1)
    fields.refuse(name, fmt::format("must be WIDTHxHEIGHT in pixels, such as 1024x768, or auto, got '{}'",
                                    printable(cut_utf8(*text, 40))));
  return size;
}

std::optional<std::string> picture_of_text(std::string_view text) {
  if (text.starts_with("data:")) {
    const size_t comma = text.find(',');
    if (comma == std::string_view::npos || !text.substr(0, comma).ends_with(";base64")) return std::nullopt;
    text.remove_prefix(comma + 1);
  }
  return decode_base64(text);
}

void require_picture(std::string_view bytes, const std::string& parameter) {
  const bool is_webp = bytes.size() >= 12 && bytes.starts_with("RIFF") && bytes.substr(8, 4) == "WEBP";
  if (!bytes.starts_with("\x89PNG\r\n\x1a\n") && !bytes.starts_with("\xff\xd8\xff") && !is_webp)
    throw ApiError(400, "invalid_image", fmt::format("'{}' must be a PNG, JPEG or WebP file", parameter),
                   parameter);
}

void read_engine_fields(ApiFields& fields, engine::Request& request,
                        std::initializer_list<std::string_view> except) {
  static constexpr std::string_view kFiles[] = {"image", "image_size", "reference_path"};
  for (const auto& each : engine::request_fields()) {
    const auto is_it = [&](std::string_view name) { return name == each.name; };
    if (!is_clients(each) || std::any_of(except.begin(), except.end(), is_it) ||
        std::any_of(std::begin(kFiles), std::end(kFiles), is_it))
      continue;
    const Json* const found = fields.value(each.name);
    if (!found) continue;
    try {
      const Json value = typed(each.kind, *found);
      check_value(each, value);
      each.set(request, value);
    } catch (const Error& error) {
      std::string_view why = error.what();
      const std::string name = fmt::format("[{}] ", each.name);  // the refusal has it too
      if (why.starts_with(name)) why.remove_prefix(name.size());
      fields.refuse(each.name, fmt::format("is wrong: {}", why));
    }
  }
}

void set_prompt(ApiFields& fields, const std::string& name, engine::Request& request) {
  std::string prompt = fields.text(name).value_or("");
  if (prompt.size() > kMaxPrompt)
    fields.refuse(name, fmt::format("has {} bytes, and may have {}", prompt.size(), kMaxPrompt));
  request.prompts = {std::move(prompt)};
}

HttpResponse refusal_response(std::string_view path, const JobRefusal& refusal,
                              std::span<const FieldName> names) {
  const auto name_of = [names](std::string_view of_engine) {
    const auto found = std::ranges::find(names, of_engine, &FieldName::first);
    return found == names.end() ? of_engine : found->second;
  };
  const std::string message =
      spell(refusal.error.message, [&](const std::string& of_engine, std::optional<bool> value) {
        std::string name(name_of(of_engine));
        // If a field has several meanings, this adds the one that is meant.
        if (std::ranges::count(names, name, &FieldName::second) > 1) name += ": " + of_engine;
        if (value) name += *value ? ": true" : ": false";
        return name;
      });
  const JobError& error = refusal.error;
  HttpResponse response = error_response(path, error.status, error.code, message, name_of(refusal.parameter));
  if (refusal.retry_after) {
    const double seconds = std::clamp(refusal.retry_after->count(), 0.0, 1e9);
    response.headers.emplace_back("Retry-After", fmt::format("{}", static_cast<int64_t>(std::ceil(seconds))));
    response.headers.emplace_back("x-should-retry", "true");
  } else {
    response.headers.emplace_back("x-should-retry", "false");
  }
  return response;
}

HttpResponse job_error_response(std::string_view path, const JobError& error) {
  HttpResponse response = error_response(path, error.status, error.code, error.message);
  response.headers.emplace_back("x-should-retry", "false");
  return response;
}

HttpResponse json_response(const OrderedJson& body) {
  return {.body = dump(body) + "\n"};
}

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Handler answering_errors(Handler handler) {
  return [handler = std::move(handler)](const std::shared_ptr<Exchange>& exchange) {
    try {
      handler(exchange);
    } catch (const ApiError& error) {
      exchange->respond(
          error_response(exchange->request().path, error.status, error.code, error.message, error.parameter));
    }
  };
}

int64_t seconds_of(WallTime time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

std::string base_url(const HttpRequest& request) {
  const bool is_secure = equal_names(request.header("x-forwarded-proto"), "https");
  const std::string_view host = request.header("host");
  return fmt::format("{}://{}", is_secure ? "https" : "http", host.empty() ? "localhost" : host);
}

}  // namespace tessera::serve
