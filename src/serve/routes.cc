#include "serve/routes.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/json.h"

namespace tessera::serve {
namespace {

std::vector<std::string> segments_of(std::string_view path) {
  std::vector<std::string> segments;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at + 1), path.size());
    segments.emplace_back(path.substr(at + 1, end - at - 1));
    at = end;
  }
  return segments;
}

bool is_parameter(const std::string& segment) {
  return segment.starts_with("{");
}

bool fits(const std::vector<std::string>& pattern, const std::vector<std::string>& path) {
  return std::equal(
      pattern.begin(), pattern.end(), path.begin(), path.end(),
      [](const std::string& a, const std::string& b) { return is_parameter(a) ? !b.empty() : a == b; });
}

std::string_view reason_of(int status) {
  static constexpr std::pair<int, std::string_view> kReasons[] = {{200, "OK"},
                                                                  {201, "Created"},
                                                                  {202, "Accepted"},
                                                                  {204, "No Content"},
                                                                  {206, "Partial Content"},
                                                                  {303, "See Other"},
                                                                  {304, "Not Modified"},
                                                                  {400, "Bad Request"},
                                                                  {401, "Unauthorized"},
                                                                  {403, "Forbidden"},
                                                                  {404, "Not Found"},
                                                                  {405, "Method Not Allowed"},
                                                                  {408, "Request Timeout"},
                                                                  {409, "Conflict"},
                                                                  {410, "Gone"},
                                                                  {413, "Payload Too Large"},
                                                                  {415, "Unsupported Media Type"},
                                                                  {416, "Range Not Satisfiable"},
                                                                  {422, "Unprocessable Entity"},
                                                                  {429, "Too Many Requests"},
                                                                  {431, "Request Header Fields Too Large"},
                                                                  {500, "Internal Server Error"},
                                                                  {501, "Not Implemented"},
                                                                  {503, "Service Unavailable"}};
  for (const auto& [number, reason] : kReasons) {
    if (number == status) return reason;
  }
  return "";
}

std::optional<uint64_t> number_of(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

Routes::Routes(std::vector<Route> routes) {
  for (Route& route : routes) {
    auto segments = segments_of(route.pattern);
    for (const Pattern& other : patterns_)
      TESSERA_CHECK(other.segments != segments || other.route.method != route.method, "{} occurs twice",
                    route.pattern);
    patterns_.push_back({std::move(route), std::move(segments)});
  }
}

Routes::Match Routes::find(std::string_view method, std::string_view path) const {
  Match match;
  if (!path.starts_with("/")) return match;
  const auto segments = segments_of(path);
  const std::vector<std::string>* first = nullptr;
  for (const Pattern& pattern : patterns_) {
    if (!fits(pattern.segments, segments)) continue;
    // A pattern with words precedes one with {...} that comes later in the table, for all methods.
    if (first == nullptr) first = &pattern.segments;
    if (pattern.segments != *first) continue;
    match.methods +=
        fmt::format("{}{}, ", pattern.route.method, pattern.route.method == "GET" ? ", HEAD" : "");
    if (pattern.route.method != method) continue;
    match.route = &pattern.route;
    for (size_t i = 0; i < segments.size(); ++i) {
      if (!is_parameter(pattern.segments[i]) || !match.parameters) continue;
      if (auto text = decode_percent(segments[i])) {
        match.parameters->push_back(std::move(*text));
      } else {
        match.parameters.reset();
      }
    }
  }
  if (!match.methods.empty()) match.methods += "OPTIONS";
  return match;
}

std::string write_head(int status, const NamedTexts& headers, const std::string& date) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", status, reason_of(status), date);
  for (const auto& [name, value] : headers) {
    head += fmt::format("{}: ", name);
    std::transform(value.begin(), value.end(), std::back_inserter(head),
                   [](char c) { return static_cast<unsigned char>(c) < 0x20 ? ' ' : c; });
    head += "\r\n";
  }
  return head + "\r\n";
}

std::optional<std::pair<uint64_t, uint64_t>> parse_range(std::string_view header, uint64_t size) {
  const std::pair<uint64_t, uint64_t> all(0, size);
  if (!header.starts_with("bytes=")) return all;
  const std::string_view range = header.substr(6);
  const size_t dash = range.find('-');
  if (dash == std::string_view::npos || range.find(',') != std::string_view::npos) return all;
  const std::string_view first = range.substr(0, dash), last = range.substr(dash + 1);
  const auto begin = number_of(first), end = number_of(last);
  if ((!first.empty() && !begin) || (!last.empty() && !end) || (!begin && !end)) return all;
  if (!begin) {  // the last bytes
    if (*end == 0 || size == 0) return std::nullopt;
    return std::pair(size - std::min(*end, size), size);
  }
  if (end && *end < *begin) return all;
  if (*begin >= size) return std::nullopt;
  return std::pair(*begin, end ? std::min(*end, size - 1) + 1 : size);
}

std::string write_event(const Event& event) {
  std::string text;
  if (event.id) text += fmt::format("id: {}\n", *event.id);
  if (!event.name.empty()) text += fmt::format("event: {}\n", event.name);
  // A carriage return ends a line of a stream, too.
  for (size_t at = 0; at <= event.data.size();) {
    const size_t end = std::min(event.data.find_first_of("\r\n", at), event.data.size());
    text += fmt::format("data: {}\n", std::string_view(event.data).substr(at, end - at));
    at = end + (event.data.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return text + "\n";
}

HttpResponse error_response(std::string_view path, int status, std::string_view code,
                            std::string_view message, std::string_view parameter) {
  const bool is_automatic = path.starts_with("/sdapi/") || path.starts_with("/internal/");
  OrderedJson body;
  if (is_automatic) {
    body = {{"error", code}, {"detail", message}, {"body", ""}, {"errors", message}};
    // The form in which AUTOMATIC1111 reports which field is wrong.
    if (status == 422 && !parameter.empty()) {
      const OrderedJson detail = {
          {"loc", OrderedJson::array({"body", parameter})}, {"msg", message}, {"type", "value_error"}};
      body["detail"] = OrderedJson::array({detail});
    }
  } else {
    const char* const type = status >= 500   ? "server_error"
                             : status == 429 ? "requests"
                                             : "invalid_request_error";
    body["error"] = {{"message", message}, {"type", type}, {"param", nullptr}, {"code", code}};
    if (!parameter.empty()) body["error"]["param"] = parameter;
  }
  return {.status = status, .body = body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n"};
}

}  // namespace tessera::serve
