#include "tessera/engine.h"

#include <cstdlib>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/json.h"
#include "engine/find_model.h"
#include "launch/rank_environment.h"
#include "library/engine_state.h"

namespace tessera {
namespace {

std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

engine::Model model_of(const EngineOptions& options) {
  const auto [folder, single_file] =
      engine::find_model_files(unless_empty(options.model), unless_empty(options.config));
  return engine::read_model(folder, single_file, options.variant);
}

}  // namespace

struct World::Connections {
  comm::World world;
};

World::World() : connections_(std::make_shared<Connections>()) {}

World World::from_environment() {
  World world;
  if (const auto place = launch::read_rank_environment(std::getenv); place && place->world_size > 1)
    world.connections_->world = comm::World::join(*place);
  return world;
}

int64_t World::rank() const {
  return connections_->world.rank();
}

int64_t World::size() const {
  return connections_->world.size();
}

Engine::State::State(const EngineOptions& options, comm::World world_of_ranks)
    : world(std::move(world_of_ranks)),
      engine(model_of(options), options.memory_budget, world),
      parallel(options.parallel) {}

std::vector<engine::Settings> Engine::State::resolve(std::span<const Request> requests) {
  if (requests.empty()) usage_error("requests", "there is none");
  std::vector<engine::Settings> all;
  for (const Request& request : requests) all.push_back(engine::resolve(request, engine.model()));
  if (world.size() == 1) return all;
  // Each rank has drawn the seeds that were left out; those of rank 0 count.
  std::vector<int64_t> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::string seeds;
  for (const engine::Settings& settings : all) seeds += std::to_string(*settings.request.seed) + ' ';
  std::istringstream of_first(comm::broadcast_bytes(seeds, 0, world.group(ranks, "world")));
  for (engine::Settings& settings : all) of_first >> settings.request.seed.emplace();
  return all;
}

parallel::Layout Engine::State::layout_for(std::span<const engine::Settings> requests) const {
  return parallel::resolve_layout(parallel, engine::workload(requests, engine.model()), world.size());
}

Engine::Engine(const EngineOptions& options, const World& world)
    : state_(std::make_unique<State>(options, world.connections_->world)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

std::vector<Result> Engine::generate(std::span<const Request> requests, const Observer& observer) {
  const std::vector<engine::Settings> all = state_->resolve(requests);
  return state_->engine.run(all, state_->layout_for(all), observer);
}

Result Engine::generate(const Request& request, const Observer& observer) {
  return std::move(generate(std::span(&request, 1), observer).front());
}

Request Engine::resolved(const Request& request) const {
  return engine::resolve(request, state_->engine.model()).request;
}

uint64_t Engine::bytes_loaded() const {
  return state_->engine.bytes_loaded();
}

Request read_request(std::string_view json) {
  return read_fields(engine::request_fields(), parse_json(json, "request"));
}

std::string write_request(const Request& request) {
  return write_fields(engine::request_fields(), request).dump();
}

}  // namespace tessera
