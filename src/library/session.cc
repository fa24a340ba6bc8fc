#include "tessera/session.h"

#include <optional>
#include <utility>

#include "engine/session.h"
#include "library/engine_state.h"

namespace tessera {

struct SavedRun::State {
  engine::SavedRun run;
};

SavedRun::SavedRun(std::unique_ptr<State> state) : state_(std::move(state)) {}
SavedRun::SavedRun(SavedRun&&) noexcept = default;
SavedRun& SavedRun::operator=(SavedRun&&) noexcept = default;
SavedRun::~SavedRun() = default;

struct Session::State {
  Engine& engine;
  std::optional<engine::Session> session;  // from the first run on; its layout fits all runs
};

Session::Session(Engine& engine) : state_(new State{engine, {}}) {}
Session::~Session() = default;

Session::Id Session::begin(std::span<const Request> requests, const Observer& observer) {
  Engine::State& engine = *state_->engine.state_;
  const std::vector<engine::Settings> all = engine.resolve(requests);
  if (!state_->session) state_->session.emplace(engine.engine, engine.layout_for(all));
  return state_->session->begin(all, observer);
}

Session::Id Session::begin(const Request& request, const Observer& observer) {
  return begin(std::span(&request, 1), observer);
}

Session::Id Session::resume(const SavedRun& saved, const Observer& observer) {
  Engine::State& engine = *state_->engine.state_;
  const engine::SavedRun& run = saved.state_->run;
  if (!state_->session) state_->session.emplace(engine.engine, engine.layout_for(run.requests));
  return state_->session->resume(run, observer);
}

bool Session::advance() {
  return state_->session && state_->session->advance();
}

bool Session::is_running(Id id) const {
  return state_->session && state_->session->is_running(id);
}

std::vector<Result> Session::take(Id id) {
  return state_->session.value().take(id);
}

void Session::drop(Id id) {
  state_->session.value().drop(id);
}

SavedRun Session::save(Id id) {
  return SavedRun(std::unique_ptr<SavedRun::State>(new SavedRun::State{state_->session.value().save(id)}));
}

}  // namespace tessera
