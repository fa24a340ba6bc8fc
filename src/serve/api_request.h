// What the requests of all APIs have in common: their bodies, typed fields, and how they are refused.
#pragma once

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "serve/http.h"
#include "serve/job_service.h"
#include "serve/model_traits.h"

namespace tessera::serve {

struct ApiOptions {
  size_t body_bytes = 1 << 20;             // for a request without files
  size_t upload_bytes = size_t{64} << 20;  // for a request with files
  int64_t max_pictures = 16;               // of a request
};

// The reason why a request is refused, thrown while it is read. `parameter` is the client's own name of the
// wrong field, if a field is wrong.
class ApiError : public std::exception {
 public:
  ApiError(int status, std::string code, std::string message, std::string parameter = {})
      : status(status), code(std::move(code)), message(std::move(message)), parameter(std::move(parameter)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;
  std::string code, message, parameter;
};

// The API's own warnings and those of the server, each once.
std::vector<std::string> with_warnings_of(const JobView& job, std::vector<std::string> own);

// Typed access to the fields of a body. Null counts as absent, which is what clients mean by it. Throws
// ApiError with the status that the API uses for such mistakes; its message names the field, what was
// expected and what came. Remembers which fields were read.
class ApiFields {
 public:
  // `are_texts`: the fields are those of a form, in which numbers and flags are texts.
  ApiFields(Json object, int status, bool are_texts = false)
      : object_(std::move(object)), status_(status), are_texts_(are_texts) {}

  const Json* value(const std::string& name);  // nullptr if it is absent
  std::optional<std::string> text(const std::string& name);
  std::optional<bool> flag(const std::string& name);
  // Numbers like 20.0 are integers too.
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most);
  std::optional<double> number(const std::string& name, double least, double most);
  std::optional<std::string> choice(const std::string& name, std::initializer_list<std::string_view> choices);
  // Calls value() for fields that have no effect, whatever their values.
  void ignore(std::initializer_list<const char*> names);

  // The fields that were not read and are not null, in alphabetical order.
  std::vector<std::string> unread() const;
  const Json& object() const { return object_; }

  [[noreturn]] void refuse(const std::string& name, const std::string& why,
                           const std::string& code = "invalid_value") const;
  // Throws the same for a value that is not `what`; the message names the value too.
  [[noreturn]] void expected(const std::string& name, const std::string& what) const;

 private:
  Json number_of(const std::string& name, const Json& value) const;

  Json object_;
  int status_;
  bool are_texts_;
  std::set<std::string> read_;
};

// Returns the object in a body of type application/json, in which all numbers are finite. Throws ApiError
// (415, 400).
Json read_json_body(const HttpRequest& request);

// A body as fields, from JSON or from a form: in a form, a[b] is an object and a[] a list, as clients of
// OpenAI write them. `files` gets the parts that have a file name; their data is a view into the request.
struct ApiBody {
  Json fields = Json::object();
  std::vector<FormPart> files;
  bool is_form = false;
};
ApiBody read_body(const HttpRequest& request);
// Calls read_resend() for the request. A form is hashed by its contents, because clients separate its parts
// differently when they send it again.
void read_resend_of(const HttpRequest& request, const ApiBody& body, JobRequest& job);

// "1024x768": width, then height. Throws ApiError about the field.
struct PictureSize {
  int64_t width, height;
};
std::optional<PictureSize> read_size(ApiFields& fields, const std::string& name);

// Returns the bytes of a picture in Base64, which may be in a data URL; nothing for any other text.
std::optional<std::string> picture_of_text(std::string_view text);
// Throws ApiError unless the bytes begin like a PNG, JPEG or WebP file; `parameter` is the name of their
// field.
void require_picture(std::string_view bytes, const std::string& parameter);

// Sets the fields of a request that clients may choose by their usual names (engine::request_fields()): those
// of prompts, pictures, videos and sampling, except those that name files, and `except`.
void read_engine_fields(ApiFields& fields, engine::Request& request,
                        std::initializer_list<std::string_view> except);
// Sets the prompt. Throws ApiError if it is too long.
void set_prompt(ApiFields& fields, const std::string& name, engine::Request& request);

// Answers. `names` are pairs of a field's name in the engine and in the API.
using FieldName = std::pair<std::string_view, std::string_view>;
HttpResponse refusal_response(std::string_view path, const JobRefusal& refusal,
                              std::span<const FieldName> names);
// For a job that ended without a result. The answer asks clients not to send the request again.
HttpResponse job_error_response(std::string_view path, const JobError& error);
HttpResponse json_response(const OrderedJson& body);
std::string dump(const OrderedJson& json);  // on one line; bytes that are not UTF-8 are replaced
// Calls the handler, and turns an ApiError that it throws into an answer.
Handler answering_errors(Handler handler);

// Seconds since 1970.
int64_t seconds_of(WallTime time);
// Returns "http://host:port", as the client called the server, for links.
std::string base_url(const HttpRequest& request);

}  // namespace tessera::serve
