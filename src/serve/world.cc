#include "serve/world.h"

#include <ATen/Functions.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <algorithm>

#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/json.h"
#include "engine/batch.h"
#include "engine/denoiser_stage.h"
#include "engine/observer.h"
#include "engine/saved_run.h"
#include "engine/session.h"
#include "launch/failure.h"

namespace tessera::serve {
namespace {

using Kind = WorldOrder::Kind;
using What = WorldEvent::Kind;
using Clock = std::chrono::steady_clock;

// the interval of signs of life without runs
constexpr std::chrono::milliseconds kBetweenSigns = std::chrono::seconds(1);

// A GPU without a number is this rank's own, the current device of its thread.
engine::Settings on_own_device(engine::Settings settings) {
  at::Device& device = settings.request.device;
  if (!device.is_cpu() && !device.has_index())
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  return settings;
}

std::vector<engine::Settings> resolve_all(const std::vector<std::string>& requests,
                                          const engine::Model& model) {
  std::vector<engine::Settings> settings;
  for (const std::string& text : requests) {
    const engine::Request request = read_fields(engine::request_fields(), parse_json(text, "request"));
    if (!request.seed) usage_error(field("seed"), "is missing: ranks would draw different ones");
    settings.push_back(on_own_device(engine::resolve(request, model)));
  }
  if (settings.empty()) usage_error(field("prompt"), "there is no request");
  return settings;
}

// Orders as all ranks need them; saved runs are only for rank 0.
std::string write_orders(const std::vector<WorldOrder>& orders) {
  Json all = Json::array();
  for (const WorldOrder& order : orders)
    all.push_back({static_cast<int>(order.kind), order.run, order.requests, order.preview_every});
  return all.dump();
}

std::vector<WorldOrder> read_orders(const std::string& text) {
  std::vector<WorldOrder> orders;
  for (const Json& each : parse_json(text, "orders")) {
    WorldOrder& order = orders.emplace_back();
    order.kind = static_cast<Kind>(each.at(0).get<int>());
    order.run = each.at(1).get<int64_t>();
    order.requests = each.at(2).get<std::vector<std::string>>();
    order.preview_every = each.at(3).get<int64_t>();
  }
  return orders;
}

// Returns the frames of a tensor [F, H, W, 3] of 8 bits.
VideoFrames frames_of(const at::Tensor& tensor) {
  const at::Tensor pixels = tensor.contiguous();
  VideoFrames frames{.count = pixels.size(0), .height = pixels.size(1), .width = pixels.size(2)};
  frames.pixels.assign(reinterpret_cast<const char*>(pixels.const_data_ptr<uint8_t>()), pixels.nbytes());
  return frames;
}

parallel::Layout layout_of(const std::vector<engine::Settings>& settings, const engine::Model& model,
                           const parallel::ParallelOptions& options, int64_t ranks) {
  return parallel::resolve_layout(options, engine::workload(settings, model), ranks);
}

class World {
 public:
  World(engine::Engine& engine, comm::World world, const parallel::ParallelOptions& options, WorldPort* port,
        std::chrono::milliseconds between_previews)
      : engine_(engine),
        options_(options),
        port_(port),
        between_previews_(between_previews),
        group_(group_of(world)) {
    tell_ready();
    if (port_ != nullptr) port_->take_warnings();  // of loading
  }

  // Takes the next orders, and a step of every run. Returns whether the world continues.
  bool turn(std::chrono::milliseconds idle) {
    std::vector<WorldOrder> orders;
    if (port_ != nullptr) {
      orders = next_orders(idle);
      comm::broadcast_bytes(write_orders(orders), 0, group_);
    } else {
      orders = read_orders(comm::broadcast_bytes({}, 0, group_));
    }
    for (const WorldOrder& order : orders) {
      if (order.kind == Kind::kEnd) return false;
      obey(order);
    }
    if (runs_.empty()) return true;
    advance();
    tell_warnings();
    end_runs();
    return true;
  }

 private:
  struct Running {
    engine::Session::Id id;
    std::string key;  // batch_key()
    // On rank 0.
    int64_t preview_every = 0;  // as requested by the front
    bool is_shown = false;      // whether the next step gives a preview
    int64_t steps_done = 0, steps_shown = 0;
    std::optional<Clock::time_point> shown = {};
  };
  using Keys = std::map<int64_t, std::string>;  // of runs
  // What an order to begin or to resume amounts to.
  struct Begun {
    std::vector<engine::Settings> settings;
    std::string key;  // batch_key()
    parallel::Layout layout;
    engine::SavedRun saved;
  };

  static comm::Group group_of(comm::World& world) {
    std::vector<int64_t> all(static_cast<size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    return world.group(all, "world");
  }

  // On rank 0: what all ranks have to do before the next steps.
  std::vector<WorldOrder> next_orders(std::chrono::milliseconds idle) {
    const bool is_idle = runs_.empty();
    std::vector<WorldOrder> asked =
        port_->orders(is_idle ? std::min(idle, kBetweenSigns) : std::chrono::milliseconds(0));
    if (is_idle && Clock::now() - told_ >= kBetweenSigns) tell({.kind = What::kAlive});
    std::vector<WorldOrder> orders;
    Keys keys;  // of the runs in progress, after the orders so far
    for (const auto& [run, running] : runs_) keys[run] = running.key;
    for (WorldOrder& order : asked) {
      if (order.kind == Kind::kWatch) {
        watch(order, orders);
      } else if (is_possible(order, keys)) {
        orders.push_back(std::move(order));
      }
    }
    add_previews(orders);
    return orders;
  }

  // For a run in progress, or one that begins now.
  void watch(const WorldOrder& order, std::vector<WorldOrder>& orders) {
    if (const auto found = runs_.find(order.run); found != runs_.end())
      found->second.preview_every = order.preview_every;
    for (WorldOrder& each : orders) {
      if (each.run == order.run) each.preview_every = order.preview_every;
    }
  }

  // A step of every run. Where there is one rank and one run, it ends before its next block if that is to be
  // dropped: nobody waits for the rest of a step that may take minutes, and the order finds the run gone.
  void advance() {
    std::optional<engine::SampleBlocks> look;
    if (group_.size == 1 && runs_.size() == 1) {
      look.emplace([this, run = runs_.begin()->first](int64_t /*block*/) {
        if (port_->will_drop(run)) throw engine::Cancelled();
        return true;
      });
    }
    session_->advance();
  }

  // Adds orders for runs whose previews start or stop with the next step, so that ranks send nothing for
  // steps that nobody sees, or that come too soon after the last preview.
  void add_previews(std::vector<WorldOrder>& orders) {
    const auto now = Clock::now();
    for (auto& [run, running] : runs_) {
      const int64_t step = running.steps_done + 1;
      const bool is_due = running.preview_every > 0 && step - running.steps_shown >= running.preview_every &&
                          (!running.shown || now - *running.shown >= between_previews_);
      if (is_due) {
        running.steps_shown = step;
        running.shown = now;
      }
      if (std::exchange(running.is_shown, is_due) == is_due) continue;
      orders.push_back(
          {.kind = Kind::kWatch, .run = run, .requests = {}, .saved = {}, .preview_every = is_due ? 1 : 0});
    }
  }

  // Plans an order to begin or to resume, without its saved state.
  Begun plan(const WorldOrder& order) const {
    Begun begun{
        .settings = resolve_all(order.requests, engine_.model()), .key = {}, .layout = {}, .saved = {}};
    begun.key = engine::batch_key(begun.settings.front());
    begun.layout = layout_of(begun.settings, engine_.model(), options_, group_.size);
    return begun;
  }

  // On rank 0: whether all ranks can carry it out. If not, reports that to the front.
  bool is_possible(const WorldOrder& order, Keys& keys) {
    switch (order.kind) {
      case Kind::kEnd:
        return true;
      case Kind::kDropAll:
        keys.clear();
        return true;
      case Kind::kDrop:
        if (keys.erase(order.run) > 0) return true;
        tell({.kind = What::kDropped, .run = order.run});
        return false;
      case Kind::kWatch:
      case Kind::kSave:
        return keys.contains(order.run);
      case Kind::kBegin:
      case Kind::kResume:
        break;
    }
    TESSERA_CHECK(!keys.contains(order.run), "run {} is under way", order.run);
    try {
      Begun begun = plan(order);
      engine::Batch batch(begun.settings);
      if (order.kind == Kind::kResume)
        begun.saved = engine::read_saved_run(order.saved, engine_.model(), "saved run");
      if (!keys.empty() && begun.key != keys.begin()->second)
        usage_error("run", "its requests are not like those under way");
      keys[order.run] = begun.key;
      begun_[order.run] = std::move(begun);
      return true;
    } catch (const std::exception&) {
      tell_failure(order.run, launch::current_failure());
      return false;
    }
  }

  void obey(const WorldOrder& order) {
    switch (order.kind) {
      case Kind::kBegin:
      case Kind::kResume:
        return begin(order);
      case Kind::kWatch:
        // An order of this turn may have dropped the run.
        if (const auto found = runs_.find(order.run); found != runs_.end())
          session_->watch(found->second.id, order.preview_every);
        return;
      case Kind::kSave:
        return save(order.run);
      case Kind::kDrop:
        session_->drop(runs_.at(order.run).id);
        runs_.erase(order.run);
        return tell({.kind = What::kDropped, .run = order.run});
      case Kind::kDropAll:
        for (const auto& [run, running] : std::exchange(runs_, {})) session_->drop(running.id);
        return tell_ready();
      case Kind::kEnd:
        return;
    }
  }

  void begin(const WorldOrder& order) {
    tell({.kind = What::kBegun, .run = order.run});
    auto [settings, key, layout, saved] =
        port_ != nullptr ? std::move(begun_.extract(order.run).mapped()) : plan(order);
    // A session has one layout, which depends on the requests' shape; all of its runs are alike.
    if (runs_.empty()) session_.emplace(engine_, layout);
    const engine::Observer observer =
        port_ != nullptr ? observer_of(order.run, settings.front()) : engine::Observer();
    engine::Session::Id id = 0;
    if (order.kind == Kind::kBegin) {
      id = session_->begin(settings, observer);
    } else {
      saved.requests = settings;
      id = session_->resume(saved, observer);
    }
    runs_[order.run] = {.id = id, .key = key, .preview_every = order.preview_every};
  }

  // A run that works with activations of earlier steps continues unsaved, and begins again elsewhere.
  void save(int64_t run) {
    try {
      const engine::SavedRun saved = session_->save(runs_.at(run).id);
      if (port_ == nullptr) return;
      WorldEvent event{.kind = What::kSaved, .run = run};
      event.step = saved.denoising ? saved.denoising->next_step : 0;
      event.saved = engine::write_saved_run(saved);
      tell(event);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
    }
  }

  engine::Observer observer_of(int64_t run, const engine::Settings& settings) {
    engine::Observer observer;
    observer.progressed = [this, run](engine::Phase phase, int64_t done, int64_t total) {
      if (phase != engine::Phase::kDenoise) return;
      Running& running = runs_.at(run);
      running.steps_done = done;
      tell({.kind = What::kStep, .run = run, .step = done, .steps = total});
    };
    observer.decoded_image = [this, run](int64_t picture, const Image& image) {
      tell({.kind = What::kPicture, .run = run, .index = picture, .image = image});
    };
    observer.decoded = [this, run, fps = settings.video.shown_fps, total = settings.all_frames(),
                        done = std::map<int64_t, int64_t>()](int64_t video,
                                                             const at::Tensor& frames) mutable {
      WorldEvent event{.kind = What::kFrames, .run = run, .index = video};
      event.frames = frames_of(frames);
      event.frames.first = std::exchange(done[video], done[video] + event.frames.count);
      event.frames.total = total;
      event.frames.fps = fps;
      tell(event);
    };
    observer.previewed = [this, run](const engine::Preview& preview) {
      const int64_t step = runs_.at(run).steps_done + 1;  // progressed() has yet to report it
      for (size_t i = 0; i < preview.images.size(); ++i)
        tell({.kind = What::kPreview,
              .run = run,
              .step = step,
              .index = preview.first_picture + static_cast<int64_t>(i),
              .image = preview.images[i]});
    };
    observer.preview_sketches = true;
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
      end_run(run, running.id);
    }
    if (runs_.empty()) session_.reset();
  }

  // A failure while messages are in flight ends a run on all ranks; the world continues only if the engine
  // can.
  void end_run(int64_t run, engine::Session::Id id) {
    engine::Seconds seconds;
    launch::Failure failure;
    try {
      seconds = session_->take(id).front().seconds;
    } catch (const engine::Cancelled&) {
      return;  // the order that drops it comes next, and is answered
    } catch (const std::exception&) {
      if (!engine_.is_usable()) throw;
      failure = launch::current_failure();
    }
    // The rank that lacks memory may be another one, which this rank only knows to have failed.
    const auto no_memory = static_cast<int>(ErrorKind::kMemory);
    const bool lacks_memory = failure.exit_code == no_memory;
    if (is_any(lacks_memory)) failure.exit_code = no_memory;
    if (failure.exit_code != 0) return tell_failure(run, failure);
    tell({.kind = What::kEnded, .run = run, .seconds = seconds});
  }

  bool is_any(bool own) const {
    return comm::all_reduce(at::full({1}, own ? 1.0 : 0.0, at::kFloat), group_).item<float>() > 0;
  }

  void tell_ready() {
    WorldEvent ready{.kind = What::kReady};
    ready.ranks = group_.size;
    ready.weights_bytes = engine_.bytes_loaded();
    tell(ready);
  }

  // If several runs are in progress, it is unknown which one a warning belongs to.
  void tell_warnings() {
    if (port_ == nullptr) return;
    const std::vector<std::string> warnings = port_->take_warnings();
    if (runs_.size() != 1) return;
    for (const std::string& each : warnings)
      tell({.kind = What::kWarning, .run = runs_.begin()->first, .message = each});
  }

  void tell_failure(int64_t run, const launch::Failure& failure) {
    tell({.kind = What::kFailed, .run = run, .exit_code = failure.exit_code, .message = failure.message});
  }

  void tell(const WorldEvent& event) {
    if (port_ == nullptr) return;
    port_->tell(event);
    told_ = Clock::now();
  }

  engine::Engine& engine_;
  const parallel::ParallelOptions& options_;
  WorldPort* const port_;
  const std::chrono::milliseconds between_previews_;
  const comm::Group group_;
  Clock::time_point told_;  // the last event
  std::map<int64_t, Running> runs_;
  std::map<int64_t, Begun> begun_;  // on rank 0: from the orders of this turn
  std::optional<engine::Session> session_;
};

}  // namespace

void load_world(engine::Engine& engine, const comm::World& world, const parallel::ParallelOptions& options,
                const engine::Request& typical) {
  const engine::Settings settings = engine::resolve(typical, engine.model());
  engine.load(settings, layout_of({settings}, engine.model(), options, world.size()));
}

void run_world(engine::Engine& engine, const comm::World& world, const parallel::ParallelOptions& options,
               WorldPort* port, std::chrono::milliseconds idle, std::chrono::milliseconds between_previews) {
  TESSERA_CHECK((world.rank() == 0) == (port != nullptr), "rank 0 alone has a port");
  World here(engine, world, options, port, between_previews);
  while (here.turn(idle)) {
  }
}

}  // namespace tessera::serve
