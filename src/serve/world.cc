#include "serve/world.h"

#include <map>
#include <numeric>
#include <optional>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/json.h"
#include "engine/batch.h"
#include "engine/saved_run.h"
#include "engine/session.h"

namespace tessera::serve {
namespace {

using Kind = WorldOrder::Kind;

std::vector<engine::Settings> resolve_all(const std::vector<std::string>& requests,
                                          const engine::Model& model) {
  std::vector<engine::Settings> settings;
  for (const std::string& text : requests) {
    const engine::Request request = read_fields(engine::request_fields(), parse_json(text, "request"));
    if (!request.seed) usage_error(field("seed"), "is missing: ranks would draw different ones");
    settings.push_back(engine::resolve(request, model));
  }
  if (settings.empty()) usage_error(field("prompt"), "there is no request");
  return settings;
}

// Orders as all ranks need them; what was saved is for rank 0 alone.
std::string write_orders(const std::vector<WorldOrder>& orders) {
  Json all = Json::array();
  for (const WorldOrder& order : orders)
    all.push_back({static_cast<int>(order.kind), order.run, order.requests});
  return all.dump();
}

std::vector<WorldOrder> read_orders(const std::string& text) {
  std::vector<WorldOrder> orders;
  for (const Json& each : parse_json(text, "orders")) {
    WorldOrder& order = orders.emplace_back();
    order.kind = static_cast<Kind>(each.at(0).get<int>());
    order.run = each.at(1).get<int64_t>();
    order.requests = each.at(2).get<std::vector<std::string>>();
  }
  return orders;
}

class World {
 public:
  World(engine::Engine& engine, comm::World world, const parallel::ParallelOptions& options, WorldPort* port)
      : engine_(engine), options_(options), port_(port), group_(group_of(world)) {}

  // Takes the next orders and a step of every run. Returns whether the world goes on.
  bool turn(std::chrono::milliseconds idle) {
    std::vector<WorldOrder> orders;
    if (port_ != nullptr) {
      orders = port_->orders(runs_.empty() ? idle : std::chrono::milliseconds(0));
      std::erase_if(orders, [this](const WorldOrder& order) { return !is_possible(order); });
      comm::broadcast_bytes(write_orders(orders), 0, group_);
    } else {
      orders = read_orders(comm::broadcast_bytes({}, 0, group_));
    }
    for (const WorldOrder& order : orders) {
      if (order.kind == Kind::kEnd) return false;
      obey(order);
    }
    if (runs_.empty()) return true;
    session_->advance();
    end_runs();
    return true;
  }

 private:
  struct Running {
    engine::Session::Id id;
    std::string key;  // batch_key()
  };

  static comm::Group group_of(comm::World& world) {
    std::vector<int64_t> all(static_cast<size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    return world.group(all, "world");
  }

  // On rank 0: whether all ranks can carry it out. Says so to the front if not.
  bool is_possible(const WorldOrder& order) {
    const bool is_known = runs_.contains(order.run);
    if (order.kind == Kind::kEnd) return true;
    if (order.kind == Kind::kDrop || order.kind == Kind::kSave) return is_known;
    try {
      TESSERA_CHECK(!is_known, "run {} is under way", order.run);
      const auto settings = resolve_all(order.requests, engine_.model());
      engine::Batch batch(settings);
      layout_of(settings);
      if (order.kind == Kind::kResume) engine::read_saved_run(order.saved, engine_.model(), "saved run");
      if (!runs_.empty()) require_like_others(settings.front());
      return true;
    } catch (const Error& error) {
      failed(order.run, error);
      return false;
    }
  }

  void require_like_others(const engine::Settings& settings) const {
    if (engine::batch_key(settings) != runs_.begin()->second.key)
      usage_error("run", "its requests are not like those under way");
  }

  parallel::Layout layout_of(const std::vector<engine::Settings>& settings) const {
    return parallel::resolve_layout(options_, engine::workload(settings, engine_.model()), group_.size);
  }

  void obey(const WorldOrder& order) {
    if (order.kind == Kind::kDrop) {
      session_->drop(runs_.at(order.run).id);
      runs_.erase(order.run);
      return;
    }
    if (order.kind == Kind::kSave) return save(order.run);
    const auto settings = resolve_all(order.requests, engine_.model());
    // A session has one layout, which depends on the requests' shape; all of its runs are alike.
    if (runs_.empty()) session_.emplace(engine_, layout_of(settings));
    const engine::Observer observer = port_ != nullptr ? observer_of(order) : engine::Observer();
    engine::Session::Id id = 0;
    if (order.kind == Kind::kBegin) {
      id = session_->begin(settings, observer);
    } else {
      engine::SavedRun saved;
      if (port_ != nullptr) saved = engine::read_saved_run(order.saved, engine_.model(), "saved run");
      saved.requests = settings;
      id = session_->resume(saved, observer);
    }
    runs_[order.run] = {.id = id, .key = engine::batch_key(settings.front())};
  }

  // A run that works with activations of earlier steps goes on unsaved, and begins again elsewhere.
  void save(int64_t run) {
    try {
      const engine::SavedRun saved = session_->save(runs_.at(run).id);
      if (port_ == nullptr) return;
      WorldEvent event{.kind = WorldEvent::Kind::kSaved, .run = run};
      event.step = saved.denoising ? saved.denoising->next_step : 0;
      event.saved = engine::write_saved_run(saved);
      port_->tell(event);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
    }
  }

  engine::Observer observer_of(const WorldOrder& order) {
    engine::Observer observer;
    observer.progressed = [this, run = order.run](engine::Phase phase, int64_t done, int64_t total) {
      if (phase != engine::Phase::kDenoise) return;
      port_->tell({.kind = WorldEvent::Kind::kStep, .run = run, .step = done, .steps = total});
    };
    observer.decoded_image = [this, run = order.run](int64_t picture, const Image& image) {
      port_->tell({.kind = WorldEvent::Kind::kPicture, .run = run, .index = picture, .image = image});
    };
    observer.preview_every = order.preview_every;
    observer.previewed = [this, run = order.run](const engine::Preview& preview) {
      port_->tell(
          {.kind = WorldEvent::Kind::kPreview, .run = run, .step = preview.step, .latents = preview.latents});
    };
    return observer;
  }

  void end_runs() {
    for (auto at = runs_.begin(); at != runs_.end();) {
      const auto [run, running] = *at;
      if (session_->is_running(running.id)) {
        ++at;
        continue;
      }
      at = runs_.erase(at);
      try {
        const std::vector<engine::Result> results = session_->take(running.id);
        if (port_ != nullptr)
          port_->tell({.kind = WorldEvent::Kind::kEnded, .run = run, .seconds = results.front().seconds});
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kPeer) throw;
        failed(run, error);
      }
    }
    if (runs_.empty()) session_.reset();
  }

  void failed(int64_t run, const Error& error) {
    if (port_ == nullptr) return;
    port_->tell({.kind = WorldEvent::Kind::kFailed,
                 .run = run,
                 .exit_code = error.exit_code(),
                 .message = error.message()});
  }

  engine::Engine& engine_;
  const parallel::ParallelOptions& options_;
  WorldPort* const port_;
  const comm::Group group_;
  std::map<int64_t, Running> runs_;
  std::optional<engine::Session> session_;
};

}  // namespace

void run_world(engine::Engine& engine, const comm::World& world, const parallel::ParallelOptions& options,
               WorldPort* port, std::chrono::milliseconds idle) {
  TESSERA_CHECK((world.rank() == 0) == (port != nullptr), "rank 0 alone has a port");
  World here(engine, world, options, port);
  while (here.turn(idle)) {
  }
}

}  // namespace tessera::serve
