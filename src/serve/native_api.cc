#include "serve/native_api.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/text.h"
#include "serve/api_request.h"
#include "serve/job_json.h"

namespace tessera::serve {
namespace {

using ExchangePtr = std::shared_ptr<Exchange>;

constexpr int64_t kMostListed = 100;
constexpr double kMostTimeout = 30 * 86400.0;

void refuse(const ExchangePtr& exchange, int status, std::string_view code, std::string_view message,
            std::string_view parameter = {}) {
  exchange->respond(error_response(exchange->request().path, status, code, message, parameter));
}

void no_such_job(const ExchangePtr& exchange) {
  refuse(exchange, 404, "not_found", "there is no such job");
}

// Reading requests.

// The fields of a request that a job accepts. Clients must not reach files of the server, and pictures come
// with their sizes.
const Fields<engine::Request>& request_fields_of_job() {
  static const auto& fields = *new auto([] {
    Fields<engine::Request> taken = engine::request_fields();
    std::erase_if(taken, [](const auto& each) {
      return each.name == "image" || each.name == "image_size" || each.name == "reference_path";
    });
    return taken;
  }());
  return fields;
}

void require_known(const Json& body) {
  std::vector<std::string> names;
  for (const auto& each : request_fields_of_job()) names.push_back(each.name);
  for (const char* const own : {"image", "reference", "format", "timeout"}) names.emplace_back(own);
  for (const auto& [name, value] : body.items()) {
    if (std::ranges::find(names, name) == names.end()) detail::refuse_unknown_field(name, names);
  }
}

std::string take_text(Json& json, const char* name) {
  const Json value = json.value(name, Json());
  json.erase(name);
  if (value.is_null()) return {};
  if (!value.is_string()) usage_error(field(name), "expected a text");
  return value.get<std::string>();
}

// A list of files in Base64, or a single one; data URLs are accepted too.
std::vector<std::string> take_files(Json& json, const char* name) {
  const Json value = json.value(name, Json());
  json.erase(name);
  std::vector<std::string> files;
  if (value.is_null()) return files;
  for (const Json& each : value.is_array() ? value : Json::array({value})) {
    if (!each.is_string()) usage_error(field(name), "expected a file in Base64");
    auto bytes = picture_of_text(each.get<std::string>());
    if (!bytes || bytes->empty()) usage_error(field(name), "expected a file in Base64");
    files.push_back(std::move(*bytes));
  }
  return files;
}

std::optional<Seconds> take_timeout(Json& json) {
  const Json value = json.value("timeout", Json());
  json.erase("timeout");
  if (value.is_null()) return std::nullopt;
  if (!value.is_number() || value.get<double>() <= 0 || value.get<double>() > kMostTimeout)
    usage_error(field("timeout"), "expected seconds, more than 0 and at most {:.0f}", kMostTimeout);
  return Seconds(value.get<double>());
}

// Throws ApiError, and Error for a field that is wrong.
JobRequest read_job(const HttpRequest& request) {
  Json json = read_json_body(request);
  require_known(json);
  JobRequest job{.owner = request.owner, .api = "jobs"};
  if (const std::string format = take_text(json, "format"); !format.empty())
    job.suffix = "." + (format == "jpeg" ? "jpg" : format);
  job.timeout = take_timeout(json);
  job.images = take_files(json, "image");
  job.references = take_files(json, "reference");
  job.request = read_fields(request_fields_of_job(), json);
  read_resend(request, job);
  return job;
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

[[noreturn]] void refuse_query(const std::string& name, const std::string& why) {
  throw ApiError(400, "invalid_value", fmt::format("{}: {}", printable(cut_utf8(name, 60)), why), name);
}

std::vector<JobState> read_states(std::string_view text) {
  std::vector<JobState> states;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const auto found = std::ranges::find(kJobStateNames, text.substr(at, end - at));
    if (found == kJobStateNames.end())
      refuse_query("state", fmt::format("expected names of states, separated by commas: {}",
                                        fmt::join(kJobStateNames, ", ")));
    states.push_back(static_cast<JobState>(found - kJobStateNames.begin()));
    at = end + 1;
  }
  return states;
}

// Throws ApiError.
JobFilter read_filter(const HttpRequest& request) {
  JobFilter filter;
  for (const auto& [name, value] : request.query) {
    const std::string got = fmt::format("got '{}'", printable(cut_utf8(value, 60)));
    if (name == "after") {
      // The job itself may be gone: ids ascend, so the list continues after the place where it was.
      if (!value.empty() && !is_job_id(value)) refuse_query(name, "expected the id of a job, " + got);
      filter.after = value;
    } else if (name == "limit") {
      const auto limit = whole_number(value);
      if (!limit || *limit < 1 || *limit > kMostListed)
        refuse_query(name, fmt::format("expected 1 to {}, {}", kMostListed, got));
      filter.limit = *limit;
    } else if (name == "order") {
      if (value != "asc" && value != "desc") refuse_query(name, "expected asc or desc, " + got);
      filter.newest_first = value == "desc";
    } else if (name == "state") {
      filter.states = read_states(value);
    } else {
      refuse_query(name, "is not a known parameter; known ones are state, limit, after and order");
    }
  }
  return filter;
}

// Events.

// A client that follows a job.
class Stream {
 public:
  Stream(ExchangePtr exchange) : exchange_(std::move(exchange)) {}

  void take(const JobUpdate& update) {
    switch (update.kind) {
      case JobUpdate::Kind::kState:
        return send_state(update.job, update.number);
      case JobUpdate::Kind::kStep:
        return send("step", {{"step", update.job.step}, {"steps", update.job.steps}}, update.number);
      case JobUpdate::Kind::kPreview:
        return send("preview",
                    {{"index", update.index},
                     {"step", update.job.step},
                     {"url", job_url(update.job.id) + "/preview"}},
                    update.number);
      case JobUpdate::Kind::kResult:  // its client learns of it once it can be fetched
        return;
    }
  }

  void send_state(const JobView& job, uint64_t number) {
    if (job.state == JobState::kSucceeded) {
      int64_t index = 0;
      for (const StoredResult& each : job.results) {
        send("result",
             {{"index", index},
              {"url", result_url(job.id, index)},
              {"content_type", each.content_type},
              {"bytes", each.bytes}},
             number);
        ++index;
      }
    }
    if (job.error) send("error", {{"code", job.error->code}, {"message", job.error->message}}, number);
    send("state", job_json(job), number);
    is_over_ |= has_ended(job.state);
    if (is_over_) exchange_->end_events();
  }

  bool is_over() const { return is_over_; }
  std::shared_ptr<Follower> follower = {};

 private:
  void send(const char* name, const OrderedJson& data, uint64_t number) {
    exchange_->send({.name = name, .data = dump(data), .id = number});
  }

  ExchangePtr exchange_;
  bool is_over_ = false;
};

void follow(JobService& service, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  const std::string id = request.parameters.at(0), owner = request.owner;
  const std::string_view text = text_of(request.query, "previews");
  const auto given = text.empty() ? 0 : whole_number(text);
  if (!given || *given < 0)
    return refuse(exchange, 400, "invalid_value", "previews: expected a number of steps", "previews");
  const int64_t previews = *given;
  service.find(owner, id, [&service, exchange, id, owner, previews](const std::optional<JobView>& view) {
    if (!view) return no_such_job(exchange);
    if (exchange->is_gone()) return;
    exchange->begin_events();
    // The follower is destroyed with the connection. Until then it is held here, and holds the exchange.
    const auto stream = std::make_shared<Stream>(exchange);
    exchange->on_gone([stream] { stream->follower.reset(); });
    stream->follower = service.follow(owner, id, previews, [stream](const JobUpdate& update) {
      stream->take(update);
      if (stream->is_over()) stream->follower.reset();
    });
    if (stream->is_over()) return stream->follower.reset();
    if (!stream->follower)  // it had already ended
      stream->send_state(
          *view, static_cast<uint64_t>(view->ended.value_or(view->accepted).time_since_epoch().count()));
  });
}

// Answers.

void submit(JobService& service, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  JobRequest job;
  try {
    job = read_job(request);
  } catch (const Error& error) {
    const std::vector<std::string> fields = fields_in(error.message());
    throw ApiError(400, "invalid_value", spell(error.message()), fields.empty() ? "" : fields.front());
  }
  service.submit(std::move(job), [exchange](std::variant<JobView, JobRefusal> answer, bool) {
    if (const auto* refusal = std::get_if<JobRefusal>(&answer))
      return exchange->respond(refusal_response(exchange->request().path, *refusal, {}));
    const JobView& view = std::get<JobView>(answer);
    HttpResponse response = json_response(job_json(view));
    response.status = 202;
    response.headers.emplace_back("Location", job_url(view.id));
    exchange->respond(std::move(response));
  });
}

void list(JobService& service, const ExchangePtr& exchange) {
  JobFilter filter = read_filter(exchange->request());
  const int64_t limit = filter.limit++;
  service.list(exchange->request().owner, filter, [exchange, limit](const std::vector<JobView>& views) {
    OrderedJson data = OrderedJson::array();
    for (const JobView& each : views) {
      if (std::ssize(data) < limit) data.push_back(job_json(each));
    }
    exchange->respond(json_response(
        {{"object", "list"}, {"data", std::move(data)}, {"has_more", std::ssize(views) > limit}}));
  });
}

void get_result(JobService& service, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  const auto index = whole_number(request.parameters.at(1));
  service.find(
      request.owner, request.parameters.at(0), [exchange, index](const std::optional<JobView>& view) {
        if (!view) return no_such_job(exchange);
        if (!index || *index < 0 || *index >= std::ssize(view->results))
          return refuse(exchange, 404, "not_found",
                        view->state == JobState::kSucceeded ? "there is no such result, or not any more"
                                                            : "the job has no results");
        const StoredResult& result = view->results[static_cast<size_t>(*index)];
        exchange->respond({.content_type = result.content_type,
                           .body = {},
                           .headers = {{"Cache-Control", "private, max-age=86400, immutable"}},
                           .file = result.path});
      });
}

void get_preview(JobService& service, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  const auto bytes = service.preview(request.owner, request.parameters.at(0));
  if (!bytes) return refuse(exchange, 404, "not_found", "there is no preview of such a job");
  exchange->respond(
      {.content_type = "image/jpeg", .body = *bytes, .headers = {{"Cache-Control", "no-store"}}});
}

// Cancels a job, or forgets one that has ended.
void end(JobService& service, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  const std::string owner = request.owner, id = request.parameters.at(0);
  service.find(owner, id, [&service, exchange, owner, id](const std::optional<JobView>& view) {
    if (!view) return no_such_job(exchange);
    if (!has_ended(view->state)) {
      return service.cancel(owner, id, [exchange](const std::optional<JobView>& now) {
        if (!now) return no_such_job(exchange);
        exchange->respond(json_response(job_json(*now)));
      });
    }
    service.remove(owner, id, [exchange, id](bool) {
      exchange->respond(json_response({{"id", id}, {"object", "job"}, {"deleted", true}}));
    });
  });
}

}  // namespace

std::vector<Route> native_routes(JobService& service, const RequestLimits& limits, size_t body_bytes) {
  using Call = void (*)(JobService&, const ExchangePtr&);
  const auto route = [&](const char* method, const char* pattern, Call call, size_t bytes = 0) {
    return Route{.method = method,
                 .pattern = pattern,
                 .handler = answering_errors(
                     [&service, call](const ExchangePtr& exchange) { call(service, exchange); }),
                 .body_bytes = bytes};
  };
  const auto get = [](JobService& jobs, const ExchangePtr& exchange) {
    const HttpRequest& request = exchange->request();
    jobs.find(request.owner, request.parameters.at(0), [exchange](const std::optional<JobView>& view) {
      if (!view) return no_such_job(exchange);
      exchange->respond(json_response(job_json(*view)));
    });
  };
  std::vector<Route> routes = {route("POST", "/v1/jobs", submit, body_bytes),
                               route("GET", "/v1/jobs", list),
                               route("GET", "/v1/jobs/{id}", get),
                               route("GET", "/v1/jobs/{id}/events", follow),
                               route("GET", "/v1/jobs/{id}/results/{n}", get_result),
                               route("GET", "/v1/jobs/{id}/preview", get_preview),
                               route("DELETE", "/v1/jobs/{id}", end)};
  const OrderedJson fields = fields_json(service, limits);
  routes.push_back(
      {.method = "GET", .pattern = "/v1/fields", .handler = [fields](const ExchangePtr& exchange) {
         exchange->respond(json_response(fields));
       }});
  return routes;
}

}  // namespace tessera::serve
