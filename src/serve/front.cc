#include "serve/front.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "engine/find_model.h"
#include "job/report.h"
#include "serve/access.h"
#include "serve/control.h"
#include "serve/http.h"
#include "serve/job_json.h"
#include "serve/metrics.h"
#include "serve/native_api.h"
#include "serve/openai_images.h"
#include "serve/openai_videos.h"
#include "serve/operations.h"
#include "serve/page.h"
#include "serve/sdapi.h"
#include "serve/service.h"
#include "serve/world_link.h"

namespace tessera::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kTick(100);
constexpr Seconds kBetweenSigns{1};  // the interval of signs of life for the supervisor
// How much time clients have to receive the last answers.
constexpr std::chrono::milliseconds kLastAnswers(500);

WallTime wall_clock() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

Seconds clock() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

// Writes everything at once, so that lines of several processes do not mix. If the reader does not read,
// lines are lost.
void write_line(std::string_view line) {
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

// Refusals because of a file of the model name the file, and clients must not learn where it is.
JsonConfig named_within(const fs::path& folder, const JsonConfig& config) {
  const fs::path inside = fs::path(config.where()).lexically_relative(folder);
  const bool is_inside = !inside.empty() && *inside.begin() != "..";
  return {config.values(), (is_inside ? inside : fs::path(config.where()).filename()).string()};
}

job::Job base_of(const ServeOptions& options) {
  const engine::ModelFiles files = engine::find_model_files(options.model, options.config);
  job::Job base;
  base.model = engine::read_model(files.folder, files.single_file, options.variant.value_or(""));
  base.model.scheduler = named_within(files.folder, base.model.scheduler);
  base.arguments.run.variant = options.variant;
  base.arguments.parallel = options.parallel;
  base.arguments.request = options.defaults;
  if (!options.defaults.dtype && options.defaults.device.is_cpu()) {
    engine::Request request = options.defaults;
    request.prompts = {""};
    const SuppressLog suppress_log;
    base.arguments.request.dtype = engine::resolve(request, base.model).request.dtype;
  }
  return base;
}

Access access_of(const ServeOptions& options) {
  Access access{.keys = {}, .origins = options.allow_origin, .hosts = options.allow_host};
  if (options.api_keys) access.keys = read_keys(*options.api_keys);
  // A page elsewhere whose name leads to this host could call a server that has no keys.
  if (access.keys.empty() && access.hosts.empty() && !options.listen_without_keys) {
    access.hosts = {"localhost", "127.0.0.1", "[::1]", ""};
    char name[256] = {};
    if (::gethostname(name, sizeof name - 1) == 0) access.hosts.emplace_back(name);
    for (const std::string& address : options.listen) {
      if (!address.starts_with("unix:")) access.hosts.push_back(address.substr(0, address.rfind(':')));
    }
  }
  return access;
}

ServiceOptions service_options(const ServeOptions& options) {
  ServiceOptions service{.base = base_of(options),
                         .model_name = {},
                         .journal = {.folder = options.folder,
                                     .max_result_bytes = static_cast<uint64_t>(options.max_results_bytes)}};
  service.model_name = job::model_name(service.base.model);
  service.limits.pixels = options.max_pixels;
  service.limits.steps = options.max_steps;
  service.limits.pictures = options.max_prompts;
  service.worlds = options.worlds;
  service.scheduler.max_jobs = options.max_queue;
  service.scheduler.max_jobs_of_owner = options.max_queue;
  // Numbers of the previous front are smaller, as long as the clock does not go back.
  service.scheduler.first_run = wall_clock().time_since_epoch().count();
  service.journal.time_to_live =
      std::chrono::duration_cast<std::chrono::milliseconds>(Seconds(options.results_ttl));
  return service;
}

// A world whose descriptor the server watches.
class WatchedLink final : public WorldLink {
 public:
  WatchedLink(HttpServer& server, Descriptor socket, std::function<void()> readable)
      : server_(server), link_(std::move(socket)) {
    server_.watch(link_.descriptor(), std::move(readable));
  }
  ~WatchedLink() override { server_.unwatch(link_.descriptor()); }
  WatchedLink(const WatchedLink&) = delete;
  WatchedLink& operator=(const WatchedLink&) = delete;
  void send(const WorldOrder& order) override { link_.send(order); }
  void flush() override { link_.flush(); }
  std::optional<WorldEvent> read() override { return link_.read(); }

 private:
  HttpServer& server_;
  SocketLink link_;
};

class Front {
 public:
  explicit Front(const FrontOptions& options) : control_(Descriptor(options.control)) {
    const ServeOptions& serve = options.serve;
    ServiceOptions service = service_options(serve);
    service.restarts = options.restarts;
    service_.emplace(std::move(service), hooks(), metrics_);
    const auto body_bytes = static_cast<size_t>(serve.max_body);
    const ApiOptions api{
        .body_bytes = body_bytes, .upload_bytes = body_bytes, .max_pictures = serve.max_prompts};
    server_.emplace(options.listeners, front_routes(*service_, metrics_, api),
                    HttpServer::Options{.access = access_of(serve),
                                        .on_served = request_log(metrics_, wall_clock, write_line)});
  }
  ~Front() {
    service_.reset();  // its worlds are watched by the server
    server_.reset();
  }
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  int run() {
    server_->watch(control_.descriptor(), [this] { read_control(); });
    server_->post([this] {
      tell({.kind = ControlMessage::Kind::kServing});
      tick();
    });
    server_->run();
    return exit_code_;
  }

 private:
  ServiceHooks hooks() {
    return {.post = [this](std::function<void()> call) { server_->post(std::move(call)); },
            .clock = clock,
            .wall_clock = wall_clock,
            .replace =
                [this](WorldId world, const std::string& why) {
                  ControlMessage message{.kind = ControlMessage::Kind::kReplace, .world = world};
                  message.text = why;
                  tell(std::move(message));
                }};
  }

  void tell(ControlMessage message) {
    try {
      control_.tell(std::move(message));
    } catch (const Error&) {
      lose_supervisor();
    }
  }

  // Without the supervisor, nobody starts worlds, and another server is about to start.
  void lose_supervisor() {
    exit_code_ = static_cast<int>(ErrorKind::kPeer);
    server_->stop();
  }

  void read_control() {
    try {
      while (std::optional<ControlMessage> message = control_.read()) obey(std::move(*message));
    } catch (const Error&) {
      lose_supervisor();
    }
  }

  void obey(ControlMessage message) {
    const WorldId world = message.world;
    switch (message.kind) {
      case ControlMessage::Kind::kWorld:
        service_->add_world(world,
                            std::make_unique<WatchedLink>(*server_, std::move(message.socket),
                                                          [this, world] { service_->read_world(world); }),
                            message.restarts);
        return;
      case ControlMessage::Kind::kWorldDown:
        service_->read_world(world);  // its last messages
        service_->lose_world(world, message.text);
        return;
      case ControlMessage::Kind::kReady:
        return service_->world_loaded(world);
      case ControlMessage::Kind::kDrain:
        service_->drain();
        drained_by_ = clock() + Seconds(message.seconds);
        return;
      default:
        return;
    }
  }

  void tell_alive() {
    // If the supervisor does not read, it needs no second sign.
    if (clock() - told_ < kBetweenSigns || control_.has_unsent()) return;
    told_ = clock();
    tell({.kind = ControlMessage::Kind::kAlive});
  }

  void tick() {
    service_->tick();
    tell_alive();
    try {
      control_.flush();
    } catch (const Error&) {
      return lose_supervisor();
    }
    const bool is_over = drained_by_ && (service_->is_idle() || clock() >= *drained_by_);
    if (is_over) return end();
    server_->after(kTick, [this] { tick(); });
  }

  // Clients of running jobs get their answers.
  void end() {
    server_->drain();
    server_->after(kLastAnswers, [this] { server_->stop(); });
  }

  Metrics metrics_;
  ControlSocket control_;
  std::optional<HttpServer> server_;
  std::optional<Service> service_;
  std::optional<Seconds> drained_by_;
  Seconds told_{0};  // the last sign of life
  int exit_code_ = 0;
};

}  // namespace

std::vector<Route> front_routes(Service& service, Metrics& metrics, const ApiOptions& api) {
  std::vector<Route> routes = operation_routes(service, metrics);
  const auto add = [&](std::vector<Route> more) {
    for (Route& each : more) routes.push_back(std::move(each));
  };
  add(native_routes(service, service.limits(), api.body_bytes));
  add(openai_image_routes(service, api));
  add(openai_video_routes(service, api));
  add(sdapi_routes(service, api));
  add(page_routes());
  return routes;
}

int run_front(const FrontOptions& options) {
  return Front(options).run();
}

}  // namespace tessera::serve
