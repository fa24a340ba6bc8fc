#include "serve/operations.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "serve/api_request.h"
#include "serve/job_json.h"

namespace tessera::serve {
namespace {

using ExchangePtr = std::shared_ptr<Exchange>;

std::string_view why_not_ready(const Service::Status& status) {
  if (status.is_draining) return "draining";
  const auto is_finishing = [](const Service::WorldStatus& each) { return each.is_finishing; };
  if (std::ranges::any_of(status.worlds, is_finishing)) return "finishing";
  const auto was_lost = [](const Service::WorldStatus& each) { return !each.last_loss.empty(); };
  return std::ranges::any_of(status.worlds, was_lost) ? "restarting" : "loading";
}

// The brackets at the beginning of a message may contain a file of the server, which clients must not see.
OrderedJson loss_json(const std::string& loss) {
  if (loss.empty()) return nullptr;
  return loss.starts_with("[") ? "has failed; the server's log says why" : loss;
}

std::string_view state_of(const Service::WorldStatus& world) {
  if (world.is_finishing) return "finishing";
  return world.is_ready ? "ready" : "loading";
}

OrderedJson status_json(const Service& service) {
  const Service::Status status = service.status();
  OrderedJson worlds = OrderedJson::array();
  for (const Service::WorldStatus& each : status.worlds) {
    worlds.push_back({{"world", each.id},
                      {"state", state_of(each)},
                      {"ranks", each.ranks},
                      {"weights_bytes", each.weights_bytes},
                      {"restarts", each.restarts},
                      {"runs", each.runs},
                      {"last_loss", loss_json(each.last_loss)}});
  }
  return {{"model", service.model_name()},
          {"version", TESSERA_VERSION},
          {"started", seconds_since_1970(service.started())},
          {"restarts", status.restarts},
          {"ready", status.is_ready()},
          {"draining", status.is_draining},
          {"worlds", std::move(worlds)},
          {"jobs_queued", status.queued},
          {"jobs_running", status.running},
          {"queue_bytes", status.bytes}};
}

}  // namespace

std::vector<Route> operation_routes(Service& service, Metrics& metrics) {
  const auto health = [](const ExchangePtr& exchange) {
    exchange->respond(json_response({{"status", "ok"}}));
  };
  const auto ready = [&service](const ExchangePtr& exchange) {
    const Service::Status status = service.status();
    OrderedJson body = {{"ready", status.is_ready()}};
    if (!status.is_ready()) body["reason"] = why_not_ready(status);
    HttpResponse response = json_response(body);
    if (!status.is_ready()) response.status = 503;
    exchange->respond(std::move(response));
  };
  const auto count = [&service, &metrics](const ExchangePtr& exchange) {
    service.measure();
    exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics.text()});
  };
  const auto status = [&service](const ExchangePtr& exchange) {
    exchange->respond(json_response(status_json(service)));
  };
  return {{.method = "GET", .pattern = "/health", .handler = health, .is_public = true},
          {.method = "GET", .pattern = "/ready", .handler = ready, .is_public = true},
          {.method = "GET", .pattern = "/metrics", .handler = count},
          {.method = "GET", .pattern = "/v1/status", .handler = status}};
}

std::function<void(const Served&)> request_log(Metrics& metrics, std::function<WallTime()> wall_clock,
                                               std::function<void(std::string_view)> write) {
  Metrics::Family& requests =
      metrics.counter("tessera_requests_total", "Requests that were answered.", {"route", "code"});
  Metrics::Family& seconds =
      metrics.histogram("tessera_request_seconds", "From a request's header to the first byte of its answer.",
                        {0.0001, 0.001, 0.01, 0.1, 1, 10, 60}, {"route"});
  return [&requests, &seconds, wall_clock = std::move(wall_clock),
          write = std::move(write)](const Served& served) {
    const std::string route(served.route);
    requests.add({route, std::to_string(served.status)});
    seconds.observe({route}, served.seconds);
    const OrderedJson line = {{"time", seconds_since_1970(wall_clock())},
                              {"request", served.request.id},
                              {"owner", served.request.owner},
                              {"method", served.request.method},
                              {"route", route},
                              {"status", served.status},
                              {"seconds", served.seconds}};
    write(dump(line) + "\n");
  };
}

}  // namespace tessera::serve
