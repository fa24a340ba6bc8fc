// A front for tests: a script of orders, and what a world answers.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "engine/request.h"
#include "serve/world.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::serve {

inline engine::Request request_of(uint64_t seed) {
  const std::vector<std::string> texts = {"a cat", "a red circle above a blue square", "", "a house"};
  engine::Request request = engine::tiny_request(48, 32, seed, {texts[seed % texts.size()]});
  request.num_inference_steps = 5;
  return request;
}

inline WorldOrder plain_order(WorldOrder::Kind kind, int64_t run = 0) {
  return {.kind = kind, .run = run, .requests = {}, .saved = {}};
}

inline WorldOrder begin_order(int64_t run, const std::vector<engine::Request>& requests) {
  WorldOrder order = plain_order(WorldOrder::Kind::kBegin, run);
  for (const auto& request : requests)
    order.requests.push_back(write_fields(engine::request_fields(), request).dump());
  return order;
}

// Gives the orders of a turn when it comes, and keeps what the world tells. It ends the world when there is
// no order left and no run is under way.
class Script final : public WorldPort {
 public:
  explicit Script(std::map<int64_t, std::vector<WorldOrder>> orders) : orders_(std::move(orders)) {}

  std::vector<WorldOrder> orders(std::chrono::milliseconds wait) override {
    waited.insert(wait.count());
    std::vector<WorldOrder> now;
    if (const auto found = orders_.find(turn_++); found != orders_.end()) {
      now = std::move(found->second);
      orders_.erase(found);
    }
    for (const WorldOrder& order : now) {
      if (order.kind == WorldOrder::Kind::kBegin || order.kind == WorldOrder::Kind::kResume)
        running_.insert(order.run);
      if (order.kind == WorldOrder::Kind::kDrop) running_.erase(order.run);
      if (order.kind == WorldOrder::Kind::kDropAll) running_.clear();
    }
    if (orders_.empty() && running_.empty() && now.empty())
      now.push_back(plain_order(WorldOrder::Kind::kEnd));
    return now;
  }
  void tell(const WorldEvent& event) override {
    events.push_back(event);
    if (event.kind == WorldEvent::Kind::kPicture) pictures[event.run].push_back(event.image);
    if (event.kind == WorldEvent::Kind::kSaved) saved[event.run] = event.saved;
    if (event.kind == WorldEvent::Kind::kFailed) failures[event.run] = event.message;
    if (event.kind == WorldEvent::Kind::kFrames) videos[event.run][event.index].push_back(event.frames);
    if (event.kind == WorldEvent::Kind::kEnded || event.kind == WorldEvent::Kind::kFailed)
      running_.erase(event.run);
  }
  int64_t count(WorldEvent::Kind kind, int64_t run) const {
    return std::count_if(events.begin(), events.end(),
                         [&](const WorldEvent& each) { return each.kind == kind && each.run == run; });
  }

  std::vector<WorldEvent> events;
  std::map<int64_t, std::vector<Image>> pictures;
  std::map<int64_t, std::map<int64_t, std::vector<VideoFrames>>> videos;  // by run and index
  std::map<int64_t, std::string> saved, failures;
  std::set<int64_t> waited;

 private:
  std::map<int64_t, std::vector<WorldOrder>> orders_;
  std::set<int64_t> running_;
  int64_t turn_ = 0;
};

struct WorldCase {
  std::string name;
  parallel::ParallelOptions options;
};

inline std::vector<WorldCase> world_cases() {
  using parallel::degrees;
  return {{"alone", {}}, {"cfg", degrees(1, true, 1, 1, 1, 1)}, {"ulysses", degrees(1, false, 1, 1, 2, 1)}};
}

// How a world of a test differs from others.
struct WorldSetting {
  const engine::Model* model = &engine::tiny();
  std::chrono::milliseconds idle = std::chrono::milliseconds(1);
  std::chrono::milliseconds between_previews = std::chrono::milliseconds(0);
  std::function<void(int64_t rank)> before = {};  // called on the thread of each rank
};

// Runs a world of the ranks of a case, in an engine of its own. Returns what rank 0 was told.
inline Script run_script(const WorldCase& of, std::map<int64_t, std::vector<WorldOrder>> orders,
                         const WorldSetting& setting = {}) {
  Script script(std::move(orders));
  comm::run_ranks_as_threads(
      of.options.degrees(),
      [&](const comm::World& world) {
        if (setting.before) setting.before(world.rank());
        engine::Engine engine(*setting.model, engine::kNoLimit, world);
        run_world(engine, world, of.options, world.rank() == 0 ? &script : nullptr, setting.idle,
                  setting.between_previews);
      },
      comm::Wire::kShared);
  return script;
}

}  // namespace tessera::serve
