#include "engine/session.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "core/error.h"
#include "engine/run.h"
#include "engine/stages.h"

namespace tessera::engine {

struct Session::Member {
  Member(Id id_of_run, int64_t number, SavedRun where, bool resumes, const Observer& of_caller)
      : id(id_of_run), lane(number), start(std::move(where)), is_resumed(resumes), observer(of_caller) {}

  const Id id;
  const int64_t lane;
  const SavedRun start;  // its requests, and where it begins
  const bool is_resumed;
  Observer observer;
  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  // These exist after the first call of advance().
  std::optional<parallel::Ranks> ranks;
  std::optional<Run> run;

  void advance(Engine& engine, const parallel::Layout& layout) {
    if (!run) {
      ranks.emplace(engine.world_, layout, start.requests.front().request.device, lane);
      run.emplace(start.requests, engine.model_, engine.components_, *ranks, observer,
                  is_resumed ? &start : nullptr);
    }
    run->advance();
  }
};

Session::Session(Engine& engine, parallel::Layout layout) : engine_(engine), layout_(std::move(layout)) {}

Session::~Session() {
  if (std::uncaught_exceptions() > 0) return;  // other ranks may not get here
  while (!members_.empty()) drop(members_.front()->id);
}

Session::Id Session::begin(std::span<const Settings> requests, const Observer& observer) {
  SavedRun start;
  start.requests = {requests.begin(), requests.end()};
  return add(std::move(start), false, observer);
}

Session::Id Session::resume(const SavedRun& saved, const Observer& observer) {
  return add(saved, true, observer);
}

Session::Id Session::add(SavedRun start, bool is_resumed, const Observer& observer) {
  TESSERA_CHECK(!start.requests.empty(), "no requests");
  if (!engine_.is_usable_)
    throw Error(ErrorKind::kPeer, "engine",
                "an earlier request failed while its ranks waited for each other");
  if (!members_.empty()) require_alike(members_.front()->start.requests.front(), start.requests.front());
  int64_t lane = 0;
  const auto has_lane = [&](const auto& member) { return member->lane == lane; };
  while (std::any_of(members_.begin(), members_.end(), has_lane)) ++lane;
  members_.push_back(std::make_unique<Member>(next_, lane, std::move(start), is_resumed, observer));
  return next_++;
}

bool Session::advance() {
  const c10::InferenceMode inference_mode;
  amid_messages([&](Members& members) {
    Members left;
    for (std::unique_ptr<Member>& member : members) advance(std::move(member), left);
    members = std::move(left);
  });
  return !members_.empty();
}

void Session::advance(std::unique_ptr<Member> member, Members& left) {
  const Id id = member->id;
  try {
    std::unique_ptr<Member> own = std::move(member);
    own->advance(engine_, layout_);
    if (!own->run->is_done()) return left.push_back(std::move(own));
    std::vector<Result> results = own->run->results();
    const std::chrono::duration<double> total = std::chrono::steady_clock::now() - own->began;
    for (Result& result : results) result.seconds.total = total.count();
    ended_[id] = std::move(results);
    engine_.world_.trim();
  } catch (const SettledEnd& end) {
    ended_[id] = end.cause;
  }
}

// If runs are destroyed while an exception unwinds, their messages are abandoned instead of awaited
// (comm::Exchange).
template <typename Work>
void Session::amid_messages(const Work& work) {
  std::vector<Id> ids;
  for (const auto& member : members_) ids.push_back(member->id);
  try {
    Members members = std::exchange(members_, {});
    work(members);
    members_ = std::move(members);
  } catch (...) {
    engine_.give_up();
    for (const Id id : ids) ended_.try_emplace(id, std::current_exception());
  }
}

bool Session::is_running(Id id) const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& member) { return member->id == id; });
}

std::vector<Result> Session::take(Id id) {
  const auto found = ended_.find(id);
  TESSERA_CHECK(found != ended_.end(), "run {} has not ended", id);
  const End end = std::move(found->second);
  ended_.erase(found);
  if (const auto* failure = std::get_if<std::exception_ptr>(&end)) std::rethrow_exception(*failure);
  return std::get<std::vector<Result>>(end);
}

void Session::watch(Id id, int64_t preview_every) {
  for (const auto& member : members_) {
    if (member->id != id) continue;
    member->observer.preview_every = preview_every;
    if (member->run) member->run->watch(preview_every);
  }
}

void Session::drop(Id id) {
  const c10::InferenceMode inference_mode;
  amid_messages([&](Members& members) {
    const auto found =
        std::find_if(members.begin(), members.end(), [&](const auto& member) { return member->id == id; });
    if (found == members.end()) return;
    if ((*found)->run) (*found)->run->drop();
    members.erase(found);
  });
  ended_.erase(id);
}

SavedRun Session::save(Id id) {
  const c10::InferenceMode inference_mode;
  const auto is_it = [&](const auto& member) { return member->id == id; };
  const auto found = std::find_if(members_.begin(), members_.end(), is_it);
  TESSERA_CHECK(found != members_.end(), "run {} has ended", id);
  if (!(*found)->run) return (*found)->start;
  (*found)->run->require_savable();
  SavedRun saved;
  amid_messages(
      [&](Members& members) { saved = (*std::find_if(members.begin(), members.end(), is_it))->run->save(); });
  if (const auto end = ended_.find(id); end != ended_.end())
    std::rethrow_exception(std::get<std::exception_ptr>(end->second));
  return saved;
}

}  // namespace tessera::engine
