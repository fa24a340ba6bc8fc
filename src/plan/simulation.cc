#include "plan/simulation.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "core/error.h"

namespace tessera::plan {
namespace {

// The ranks of a group and their axis, or the sender and the receiver of single messages.
using Channel = std::pair<std::vector<int64_t>, std::string>;

struct Posted {
  size_t rank = 0;  // index in the trace
  double sent = 0, received = 0;
};

// An exchange on a channel. It begins when all of them have posted it.
struct Meeting {
  std::vector<Posted> posted;
  std::vector<double> arrivals;  // when it ends on each of these; empty until it begins
  double begin = 0;
};

// Consecutive events of a rank, as part of a run. Collectives of repeated events have other numbers.
struct Stretch {
  Part part;
  size_t begin = 0, end = 0;  // events
  int64_t shift = 0;          // of the numbers
};

// What a rank has under way.
struct UnderWay {
  Meeting* meeting = nullptr;
  size_t index = 0;      // of the rank in the meeting
  double computing = 0;  // of the rank until it posted this
};

struct Place {
  std::vector<Stretch> program;
  size_t stretch = 0, event = 0;
  const Meeting* blocked_by = nullptr;
  std::map<int64_t, UnderWay> under_way;  // by number
  std::map<Channel, int64_t> counts;      // of meetings
  double sends_until = 0, receives_until = 0;
  double hides_until = 0;  // of the seconds for which it computes, those that have hidden a message

  bool is_done() const { return stretch == program.size(); }
};

std::vector<Stretch> program_of(const RankTrace& rank, int64_t steady, int64_t repetitions) {
  std::vector<Stretch> program;
  Part part;
  int64_t shift = 0;
  for (size_t begin = 0; begin < rank.events.size();) {
    const Event& first = rank.events[begin];
    if (begin > 0 && first.phase < part.phase) ++part.round;
    part = {part.round, first.phase, first.phase == Phase::kDenoise ? first.step : 0, 0};
    size_t end = begin;
    int64_t collectives = 0;
    for (; end < rank.events.size(); ++end) {
      const Event& event = rank.events[end];
      if (event.phase != first.phase || event.step != first.step) break;
      collectives += std::holds_alternative<CollectiveEvent>(event.what) ? 1 : 0;
    }
    const bool repeats = first.phase == Phase::kDenoise && first.step == steady;
    for (int64_t i = 0; i < (repeats ? repetitions : 1); ++i) {
      if (i > 0) shift += collectives;
      part.repetition = i;
      program.push_back({part, begin, end, shift});
    }
    begin = end;
  }
  return program;
}

class Simulator {
 public:
  Simulator(const Trace& trace, int64_t repetitions, const Costs& costs, const std::string& where)
      : trace_(trace), costs_(costs), where_(where), places_(trace.ranks.size()) {
    for (size_t i = 0; i < places_.size(); ++i) {
      result_.ranks.emplace_back().rank = trace.ranks[i].rank;
      places_[i].program = program_of(trace.ranks[i], steady_step(trace.traced_steps), repetitions);
      if (!places_[i].is_done()) places_[i].event = places_[i].program[0].begin;
      for (const Stretch& stretch : places_[i].program)
        result_.parts[stretch.part].ranks.resize(places_.size());
    }
  }

  // The rank whose clock is lowest goes first, so that messages begin in the order of time.
  Simulation run() {
    for (size_t i = 0; i < places_.size(); ++i) ready_.emplace(0.0, i);
    while (!ready_.empty()) {
      const size_t i = ready_.top().second;
      ready_.pop();
      if (places_[i].is_done()) continue;
      if (step(i)) ready_.emplace(result_.ranks[i].end, i);
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      if (!places_[i].is_done())
        input_error(
            where_,
            "rank {} waits forever at event {}; the file is damaged or lacks ranks, so make the trace anew",
            trace_.ranks[i].rank, places_[i].event);
    }
    return std::move(result_);
  }

 private:
  using Ready = std::pair<double, size_t>;

  // Does the next event of a rank, if nothing that it waits for is missing.
  bool step(size_t i) {
    Place& place = places_[i];
    const Stretch& stretch = place.program[place.stretch];
    const auto& what = trace_.ranks[i].events[place.event].what;
    RankTime time;
    if (std::holds_alternative<OperationEvent>(what)) {
      time.computing = costs_.seconds[i][place.event];
      advance(i, Span::Kind::kOperation, result_.ranks[i].end + time.computing);
    } else if (const auto* collective = std::get_if<CollectiveEvent>(&what)) {
      post(i, *collective, stretch.shift);
    } else if (!wait(i, std::get<WaitEvent>(what).number + stretch.shift, time)) {
      return false;
    }
    result_.ranks[i] += time;
    SimulatedPart& part = result_.parts[stretch.part];
    part.ranks[i] += time;
    part.end = std::max(part.end, result_.ranks[i].end);
    if (++place.event == stretch.end && ++place.stretch < place.program.size())
      place.event = place.program[place.stretch].begin;
    return true;
  }

  void advance(size_t i, Span::Kind kind, double end) {
    RankTimeline& timeline = result_.ranks[i];
    if (end > timeline.end) timeline.spans.push_back({kind, places_[i].event, timeline.end, end});
    timeline.end = std::max(timeline.end, end);
  }

  Channel channel_of(size_t i, const CollectiveEvent& collective) const {
    if (collective.name != "send" && collective.name != "receive") return {collective.ranks, collective.axis};
    const int64_t own = trace_.ranks[i].rank;
    const bool sends = !collective.sends.empty();
    const auto& transfers = sends ? collective.sends : collective.receives;
    const int64_t peer = transfers.empty() ? own : transfers.front().peer;
    return {sends ? std::vector{own, peer} : std::vector{peer, own}, collective.axis + " single"};
  }

  void post(size_t i, const CollectiveEvent& collective, int64_t shift) {
    Place& place = places_[i];
    Channel channel = channel_of(i, collective);
    const int64_t count = place.counts[channel]++;
    const size_t ranks = channel.first.size();
    Meeting& meeting = meetings_[{std::move(channel), count}];
    place.under_way[collective.number + shift] = {&meeting, meeting.posted.size(),
                                                  result_.ranks[i].computing};
    double received = 0;  // what a file says may be more than an integer holds
    for (const Transfer& transfer : collective.receives) received += static_cast<double>(transfer.bytes);
    meeting.posted.push_back({i, static_cast<double>(collective.bytes), received});
    meeting.begin = std::max(meeting.begin, result_.ranks[i].end);
    if (meeting.posted.size() == ranks) begin(meeting);
  }

  void begin(Meeting& meeting) {
    for (const Posted& each : meeting.posted) {
      if (each.sent > 0) meeting.begin = std::max(meeting.begin, places_[each.rank].sends_until);
      if (each.received > 0) meeting.begin = std::max(meeting.begin, places_[each.rank].receives_until);
    }
    for (const Posted& each : meeting.posted) {
      Place& place = places_[each.rank];
      if (each.sent > 0) place.sends_until = meeting.begin + each.sent / costs_.bandwidth;
      if (each.received > 0) place.receives_until = meeting.begin + each.received / costs_.bandwidth;
      const double arrival =
          meeting.begin + std::max(each.sent, each.received) / costs_.bandwidth + costs_.latency;
      meeting.arrivals.push_back(arrival);
      if (place.blocked_by != &meeting) continue;
      place.blocked_by = nullptr;
      ready_.emplace(arrival, each.rank);
    }
  }

  bool wait(size_t i, int64_t number, RankTime& time) {
    Place& place = places_[i];
    const auto found = place.under_way.find(number);
    if (found == place.under_way.end())
      input_error(where_, "rank {} waits at event {} for a collective that it has not begun",
                  trace_.ranks[i].rank, place.event);
    const UnderWay one = found->second;
    if (one.index >= one.meeting->arrivals.size()) {
      place.blocked_by = one.meeting;
      return false;
    }
    const RankTimeline& timeline = result_.ranks[i];
    const double arrival = one.meeting->arrivals[one.index];
    time.waiting = std::max(arrival - timeline.end, 0.0);
    const double before = std::max(one.computing, place.hides_until);
    const double unseen = std::max(arrival - one.meeting->begin - time.waiting, 0.0);
    time.hidden = std::min(unseen, timeline.computing - before);
    place.hides_until = before + time.hidden;
    advance(i, Span::Kind::kWait, arrival);
    place.under_way.erase(found);
    return true;
  }

  const Trace& trace_;
  const Costs& costs_;
  const std::string& where_;
  std::vector<Place> places_;
  Simulation result_;
  std::map<std::pair<Channel, int64_t>, Meeting> meetings_;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
};

}  // namespace

RankTime& RankTime::operator+=(const RankTime& other) {
  computing += other.computing;
  waiting += other.waiting;
  hidden += other.hidden;
  return *this;
}

Simulation simulate(const Trace& trace, int64_t repetitions, const Costs& costs, const std::string& where) {
  if (static_cast<int64_t>(trace.ranks.size()) < trace.world_size)
    input_error(where, "holds {} of {} ranks; a timeline needs all", trace.ranks.size(), trace.world_size);
  return Simulator(trace, repetitions, costs, where).run();
}

}  // namespace tessera::plan
