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
  size_t body_bytes = 1 << 20;             // of a request without files
  size_t upload_bytes = size_t{64} << 20;  // of one with files
  int64_t max_pictures = 16;               // of a request
};

// Why a request is refused, thrown while it is read. `parameter` is the client's own name of the field at
// fault, if it is one.
class ApiError : public std::exception {
 public:
  ApiError(int status, std::string code, std::string message, std::string parameter = {})
      : status(status), code(std::move(code)), message(std::move(message)), parameter(std::move(parameter)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;
  std::string code, message, parameter;
};

// What an API warns of itself, and what the server does, each once.
std::vector<std::string> with_warnings_of(const JobView& job, std::vector<std::string> own);

// Typed access to the fields of a body. Null counts as absent, as clients mean it. Throws ApiError, with the
// status that the API has for such mistakes, which names the field, what was expected and what came. It
// remembers what was asked for.
class ApiFields {
 public:
  // `are_texts`: of a form, whose numbers and flags are texts.
  ApiFields(Json object, int status, bool are_texts = false)
      : object_(std::move(object)), status_(status), are_texts_(are_texts) {}

  const Json* value(const std::string& name);  // nullptr where there is none
  std::optional<std::string> text(const std::string& name);
  std::optional<bool> flag(const std::string& name);
  // Numbers like 20.0 are integers too.
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most);
  std::optional<double> number(const std::string& name, double least, double most);
  std::optional<std::string> choice(const std::string& name, std::initializer_list<std::string_view> choices);
  // Calls value() for fields that have no effect whatever they say.
  void ignore(std::initializer_list<const char*> names);

  // The fields that nobody asked for and that are not null, in alphabetical order.
  std::vector<std::string> unread() const;
  const Json& object() const { return object_; }

  [[noreturn]] void refuse(const std::string& name, const std::string& why,
                           const std::string& code = "invalid_value") const;
  // The same for a value that is not `what`, which it names too.
  [[noreturn]] void expected(const std::string& name, const std::string& what) const;

 private:
  Json number_of(const std::string& name, const Json& value) const;

  Json object_;
  int status_;
  bool are_texts_;
  std::set<std::string> read_;
};

// The object of a body of type application/json, whose numbers are all finite. Throws ApiError (415, 400).
Json read_json_body(const HttpRequest& request);

// A body as fields, from JSON or from a form: of the latter a[b] is an object, and a[] a list, as clients of
// OpenAI write them. `files` gets the parts with a file's name; their data is a view into the request.
struct ApiBody {
  Json fields = Json::object();
  std::vector<FormPart> files;
  bool is_form = false;
};
ApiBody read_body(const HttpRequest& request);
// read_resend() of it. A form that is sent again is hashed by what it holds: clients part it otherwise then.
void read_resend_of(const HttpRequest& request, const ApiBody& body, JobRequest& job);

// "1024x768": width, then height. Throws ApiError about the field.
struct PictureSize {
  int64_t width, height;
};
std::optional<PictureSize> read_size(ApiFields& fields, const std::string& name);

// The bytes of a picture in Base64, which may be a data URL; nothing if it is neither.
std::optional<std::string> picture_of_text(std::string_view text);
// Throws ApiError unless the bytes begin like a PNG, JPEG or WebP file; `parameter` names their field.
void require_picture(std::string_view bytes, const std::string& parameter);

// Sets what a client may choose of a request by the names that it has elsewhere (engine::request_fields()):
// the fields of prompts, pictures, videos and sampling but for those that name files, and `except`.
void read_engine_fields(ApiFields& fields, engine::Request& request,
                        std::initializer_list<std::string_view> except);
// Sets the prompt. Throws ApiError where it is too long.
void set_prompt(ApiFields& fields, const std::string& name, engine::Request& request);

// Answers. `names` are pairs of a field's name in the engine and in the API.
using FieldName = std::pair<std::string_view, std::string_view>;
HttpResponse refusal_response(std::string_view path, const JobRefusal& refusal,
                              std::span<const FieldName> names);
// Of a job that has ended without a result. Clients are told not to send it again.
HttpResponse job_error_response(std::string_view path, const JobError& error);
HttpResponse json_response(const OrderedJson& body);
std::string dump(const OrderedJson& json);  // on one line; what is not UTF-8 is replaced
// Calls the handler, and answers with the ApiError that it throws.
Handler answering_errors(Handler handler);

// Seconds since 1970.
int64_t seconds_of(WallTime time);
// "http://host:port", as the client called the server, for links.
std::string base_url(const HttpRequest& request);

}  // namespace tessera::serve
