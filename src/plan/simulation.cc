#include "plan/simulation.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace tessera::plan {
namespace {

// Distinguishes exchanges: the ranks of a group and their axis, or the sender and the receiver of single
// messages, and the how-manieth of these it is.
using Meeting = std::tuple<std::vector<int64_t>, std::string, int64_t>;

bool is_single(const CollectiveEvent& collective) {
  return collective.name == "send" || collective.name == "receive";
}

class Simulation {
 public:
  Simulation(const Trace& trace, const Costs& costs, const std::string& where)
      : trace_(trace), costs_(costs), where_(where), places_(trace.ranks.size()) {
    for (const RankTrace& rank : trace.ranks) timelines_.push_back({.rank = rank.rank, .spans = {}});
  }

  std::vector<RankTimeline> run() {
    bool goes_on = true;
    while (goes_on) {
      goes_on = false;
      for (size_t i = 0; i < places_.size(); ++i) {
        while (step(i)) goes_on = true;
      }
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].next < trace_.ranks[i].events.size())
        input_error(
            where_,
            "rank {} waits forever at event {}; the file is damaged or lacks ranks, so make the trace anew",
            trace_.ranks[i].rank, places_[i].next);
    }
    return std::move(timelines_);
  }

 private:
  struct Place {
    size_t next = 0;                                          // event
    std::map<int64_t, std::pair<Meeting, double>> under_way;  // by number, with the time of its own bytes
    std::map<std::pair<std::vector<int64_t>, std::string>, int64_t> counts;  // of meetings
  };

  // Does the next event of a rank, if nothing that it waits for is missing.
  bool step(size_t i) {
    Place& place = places_[i];
    const std::vector<Event>& events = trace_.ranks[i].events;
    if (place.next == events.size()) return false;
    const auto& what = events[place.next].what;
    if (const auto* operation = std::get_if<OperationEvent>(&what)) {
      compute(i, *operation);
    } else if (const auto* collective = std::get_if<CollectiveEvent>(&what)) {
      post(i, *collective);
    } else if (!wait(i, std::get<WaitEvent>(what).number)) {
      return false;
    }
    ++place.next;
    return true;
  }

  void compute(size_t i, const OperationEvent& operation) {
    RankTimeline& timeline = timelines_[i];
    const double seconds = costs_.operation(operation);
    if (seconds > 0)
      timeline.spans.push_back(
          {Span::Kind::kOperation, places_[i].next, timeline.end, timeline.end + seconds});
    timeline.end += seconds;
    timeline.computing += seconds;
  }

  void post(size_t i, const CollectiveEvent& collective) {
    const int64_t own = trace_.ranks[i].rank;
    std::pair<std::vector<int64_t>, std::string> key(collective.ranks, collective.axis);
    if (is_single(collective)) {
      const bool sends = !collective.sends.empty();
      const auto& transfers = sends ? collective.sends : collective.receives;
      const int64_t peer = transfers.empty() ? own : transfers.front().peer;
      key.first = sends ? std::vector{own, peer} : std::vector{peer, own};
      key.second += " single";
    }
    double received = 0;  // what a file says may be more than an integer holds
    for (const Transfer& transfer : collective.receives) received += static_cast<double>(transfer.bytes);
    const double seconds =
        costs_.latency + std::max(static_cast<double>(collective.bytes), received) / costs_.bandwidth;
    const int64_t count = places_[i].counts[key]++;
    const Meeting meeting(key.first, key.second, count);
    auto& [posted, latest] = meetings_[meeting];
    ++posted;
    latest = std::max(latest, timelines_[i].end);
    places_[i].under_way.emplace(collective.number, std::pair(meeting, seconds));
  }

  bool wait(size_t i, int64_t number) {
    const auto found = places_[i].under_way.find(number);
    if (found == places_[i].under_way.end())
      input_error(where_, "rank {} waits at event {} for a collective that it has not begun",
                  trace_.ranks[i].rank, places_[i].next);
    const auto& [meeting, seconds] = found->second;
    const auto& [posted, latest] = meetings_[meeting];
    if (posted < static_cast<int64_t>(std::get<0>(meeting).size())) return false;
    RankTimeline& timeline = timelines_[i];
    const double end = std::max(timeline.end, latest + seconds);
    if (end > timeline.end) timeline.spans.push_back({Span::Kind::kWait, places_[i].next, timeline.end, end});
    timeline.waiting += end - timeline.end;
    timeline.end = end;
    places_[i].under_way.erase(found);
    return true;
  }

  const Trace& trace_;
  const Costs& costs_;
  const std::string& where_;
  std::vector<Place> places_;
  std::vector<RankTimeline> timelines_;
  std::map<Meeting, std::pair<int64_t, double>> meetings_;  // how many have posted, and the latest of these
};

}  // namespace

std::vector<RankTimeline> simulate(const Trace& trace, const Costs& costs, const std::string& where) {
  if (static_cast<int64_t>(trace.ranks.size()) < trace.world_size)
    input_error(where, "holds {} of {} ranks; a timeline needs all", trace.ranks.size(), trace.world_size);
  return Simulation(trace, costs, where).run();
}

}  // namespace tessera::plan
