#include "plan/simulation.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "core/error.h"
#include "plan/schedule.h"

namespace tessera::plan {
namespace {

struct Posted {
  size_t rank = 0;  // index in the schedule
  TransferTime time;
  bool sends = false, receives = false;
};

// An exchange on a channel. It begins when all its ranks have posted it.
struct Meeting {
  // In most cases for one rank that represents all, or for two that hand something on.
  c10::SmallVector<Posted, 2> posted;
  c10::SmallVector<double, 2> arrivals;  // when it ends on each of these; empty until it begins
  double begin = 0;
  double computed = 0;   // when the devices could have begun it if no host had been busy
  double launching = 0;  // how much later it begins because of hosts
  double queued = 0;     // and then because of other messages on its links
};

// A message that a rank has in flight.
struct UnderWay {
  Meeting* meeting = nullptr;
  size_t index = 0;      // of the rank in the meeting
  double computing = 0;  // how long the rank had computed when it posted this
};

// A post or a wait, or work of a rank between these: a single operation, or all of them if spans are not
// needed.
struct Doing {
  const Task* exchange = nullptr;  // null for work
  size_t event = 0;                // the first
  double computing = 0;
  // How long the host launches it, and how much later than the host the device must begin to do all of it
  // without waiting for a launch.
  double launching = 0, lead = -std::numeric_limits<double>::infinity();
};

struct Place {
  std::vector<Doing> doings;
  std::vector<size_t> ends;  // of stretches, in `doings`
  size_t stretch = 0, next = 0;
  int64_t repetition = 0, shift = 0;  // of the steady step; of the numbers of posts
  const Meeting* blocked_by = nullptr;
  std::map<int64_t, UnderWay> under_way;  // by number
  std::vector<int64_t> counts;            // of meetings, by channel
  double host = 0;                        // until when the host is busy
  double sends_until = 0, receives_until = 0;
  double hides_until = 0;  // the part of its computing time that has already hidden a message
  SimulatedPart* part = nullptr;
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, int64_t repetitions, const Costs& costs, const std::string& where)
      : schedule_(schedule),
        repetitions_(repetitions),
        costs_(costs),
        where_(where),
        places_(schedule.ranks.size()),
        channels_(static_cast<size_t>(schedule.channels)) {
    for (const MeetingKind& kind : schedule.meetings)
      times_.push_back(costs.links.empty() ? TransferTime{}
                                           : transfer_time(link_of(kind), kind.transmission));
    for (size_t i = 0; i < places_.size(); ++i) {
      result_.ranks.emplace_back().rank = schedule.ranks[i].rank;
      places_[i].counts.resize(channels_.size());
      list_doings(i);
      enter(i);
    }
  }

  // The rank whose clock is lowest goes first, so that messages begin in chronological order.
  Simulation run() {
    for (size_t i = 0; i < places_.size(); ++i) ready_.emplace(0.0, i);
    while (!ready_.empty()) {
      const size_t i = ready_.top().second;
      ready_.pop();
      while (!is_done(i) && step(i)) {
        if (ready_.empty() || ready_.top().first > result_.ranks[i].end) continue;
        ready_.emplace(result_.ranks[i].end, i);
        break;
      }
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      if (!is_done(i))
        input_error(
            where_,
            "rank {} waits forever at event {}; the file is damaged or lacks ranks, so make the trace anew",
            schedule_.ranks[i].rank, event_of(i));
    }
    return std::move(result_);
  }

 private:
  using Ready = std::pair<double, size_t>;

  const Link& link_of(const MeetingKind& kind) const {
    return link_between(costs_.links, kind.first, kind.last);
  }
  bool is_done(size_t i) const { return places_[i].stretch == schedule_.ranks[i].program.size(); }

  size_t event_of(size_t i) const { return places_[i].doings[places_[i].next].event; }

  void list_doings(size_t i) {
    Place& place = places_[i];
    const RankSchedule& rank = schedule_.ranks[i];
    for (const Stretch& stretch : rank.program) {
      bool goes_on = false;  // whether it continues the previous work
      for (size_t event = stretch.begin; event < stretch.end; ++event) {
        const Task& task = rank.tasks[event];
        const bool is_work = task.kind == Task::Kind::kWork;
        if (!is_work || !goes_on)
          place.doings.push_back({.exchange = is_work ? nullptr : &task, .event = event});
        goes_on = is_work && !costs_.keeps_spans;
        if (is_work) add_work(i, task, place.doings.back());
      }
      place.ends.push_back(place.doings.size());
    }
  }

  // An operation is launched before the device can begin it, and after earlier ones have been launched.
  void add_work(size_t i, const Task& task, Doing& doing) const {
    if (task.launches > 0 && costs_.launch > 0) {
      doing.launching += static_cast<double>(task.launches) * costs_.launch;
      doing.lead = std::max(doing.lead, doing.launching - doing.computing);
    }
    doing.computing += task.seconds * costs_.factors[static_cast<size_t>(task.work)] *
                       (costs_.slow.empty() ? 1 : costs_.slow[i]);
  }

  // Begins the stretch, or its next repetition.
  void enter(size_t i) {
    if (is_done(i)) return;
    Place& place = places_[i];
    const Stretch& stretch = schedule_.ranks[i].program[place.stretch];
    place.next = place.stretch == 0 ? 0 : place.ends[place.stretch - 1];
    Part part = stretch.part;
    part.repetition = place.repetition;
    place.part = &result_.parts[part];
    place.part->ranks.resize(places_.size());
  }

  void leave(size_t i) {
    Place& place = places_[i];
    const Stretch& stretch = schedule_.ranks[i].program[place.stretch];
    if (stretch.is_steady && ++place.repetition < repetitions_) {
      place.shift += stretch.posts;
    } else {
      place.repetition = 0;
      ++place.stretch;
    }
    enter(i);
  }

  // Does the next thing on a rank, unless something that it waits for is missing.
  bool step(size_t i) {
    Place& place = places_[i];
    const Doing& doing = place.doings[place.next];
    RankTime time;
    if (doing.exchange == nullptr) {
      work(i, doing, time);
    } else if (doing.exchange->kind == Task::Kind::kPost) {
      post(i, *doing.exchange);
    } else if (!wait(i, *doing.exchange, time)) {
      return false;
    }
    result_.ranks[i] += time;
    place.part->ranks[i] += time;
    place.part->end = std::max(place.part->end, result_.ranks[i].end);
    if (++place.next == place.ends[place.stretch]) leave(i);
    return true;
  }

  void advance(size_t i, Span::Kind kind, double end) {
    RankTimeline& timeline = result_.ranks[i];
    if (costs_.keeps_spans && end > timeline.end)
      timeline.spans.push_back({kind, event_of(i), timeline.end, end});
    timeline.end = std::max(timeline.end, end);
  }

  void work(size_t i, const Doing& doing, RankTime& time) {
    Place& place = places_[i];
    const double begin = place.host + doing.lead;
    place.host += doing.launching;
    time.waiting = time.launching = std::max(begin - result_.ranks[i].end, 0.0);
    advance(i, Span::Kind::kWait, begin);
    time.computing = doing.computing;
    advance(i, Span::Kind::kOperation, result_.ranks[i].end + time.computing);
  }

  void post(size_t i, const Task& task) {
    Place& place = places_[i];
    const MeetingKind& kind = schedule_.meetings[static_cast<size_t>(task.meeting)];
    std::deque<Meeting>& channel = channels_[static_cast<size_t>(kind.channel)];
    const auto count = static_cast<size_t>(place.counts[static_cast<size_t>(kind.channel)]++);
    while (channel.size() <= count) channel.emplace_back();
    Meeting& meeting = channel[count];
    if (task.sent + task.received > 0 && !costs_.links.empty()) place.host += link_of(kind).launch;
    place.under_way[task.number + place.shift] = {&meeting, meeting.posted.size(),
                                                  result_.ranks[i].computing};
    meeting.posted.push_back(
        {i, times_[static_cast<size_t>(task.meeting)], task.sent > 0, task.received > 0});
    meeting.computed = std::max(meeting.computed, result_.ranks[i].end);
    meeting.begin = std::max({meeting.begin, result_.ranks[i].end, place.host});
    if (static_cast<int32_t>(meeting.posted.size()) == kind.members) begin(meeting);
  }

  void begin(Meeting& meeting) {
    const double launched = meeting.begin;
    meeting.launching = launched - meeting.computed;
    for (const Posted& each : meeting.posted) {
      if (each.sends) meeting.begin = std::max(meeting.begin, places_[each.rank].sends_until);
      if (each.receives) meeting.begin = std::max(meeting.begin, places_[each.rank].receives_until);
    }
    meeting.queued = meeting.begin - launched;
    for (const Posted& each : meeting.posted) {
      Place& place = places_[each.rank];
      if (each.sends) place.sends_until = meeting.begin + each.time.busy;
      if (each.receives) place.receives_until = meeting.begin + each.time.busy;
      const double arrival = meeting.begin + each.time.busy + each.time.latency;
      meeting.arrivals.push_back(arrival);
      if (place.blocked_by != &meeting) continue;
      place.blocked_by = nullptr;
      ready_.emplace(arrival, each.rank);
    }
  }

  bool wait(size_t i, const Task& task, RankTime& time) {
    Place& place = places_[i];
    const auto found = place.under_way.find(task.number + place.shift);
    if (found == place.under_way.end())
      input_error(where_, "rank {} waits at event {} for a collective that it has not begun",
                  schedule_.ranks[i].rank, event_of(i));
    const UnderWay one = found->second;
    if (one.index >= one.meeting->arrivals.size()) {
      place.blocked_by = one.meeting;
      return false;
    }
    const RankTimeline& timeline = result_.ranks[i];
    const Posted& posted = one.meeting->posted[one.index];
    const double arrival = one.meeting->arrivals[one.index];
    const double unhidden = posted.receives ? posted.time.busy * (1 - overlap_) : 0;
    time.waiting = std::max(arrival - timeline.end, unhidden);
    tell(time, posted.time, std::max(arrival - timeline.end, 0.0), *one.meeting);
    const double before = std::max(one.computing, place.hides_until);
    const double unseen = std::max(arrival - one.meeting->begin - time.waiting, 0.0);
    time.hidden = std::min(unseen, timeline.computing - before);
    place.hides_until = before + time.hidden;
    advance(i, Span::Kind::kWait, timeline.end + time.waiting);
    place.under_way.erase(found);
    return true;
  }

  // Attributes a rank's wait of `left` seconds until a message arrives: the last part is the latency, before
  // it come the bytes of this and earlier messages on the links, and before these the hosts; the rest is due
  // to other ranks.
  static void tell(RankTime& time, const TransferTime& message, double left, const Meeting& meeting) {
    time.latency = std::min(left, message.latency);
    time.sending = std::min(time.waiting - time.latency, message.busy);
    const double queued = std::clamp(left - time.latency - time.sending, 0.0, meeting.queued);
    time.sending += queued;
    time.launching = std::clamp(left - time.latency - time.sending, 0.0, meeting.launching);
  }

  const Schedule& schedule_;
  int64_t repetitions_;
  const Costs& costs_;
  const std::string& where_;
  double overlap_ = costs_.links.empty() ? 1 : costs_.links.front().overlap;
  std::vector<Place> places_;
  Simulation result_;
  std::vector<std::deque<Meeting>> channels_;
  std::vector<TransferTime> times_;  // by kind of meeting
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
};

}  // namespace

RankTime& RankTime::operator+=(const RankTime& other) {
  computing += other.computing;
  waiting += other.waiting;
  hidden += other.hidden;
  launching += other.launching;
  latency += other.latency;
  sending += other.sending;
  return *this;
}

Simulation simulate(const Schedule& schedule, int64_t repetitions, const Costs& costs,
                    const std::string& where) {
  return Simulator(schedule, repetitions, costs, where).run();
}

}  // namespace tessera::plan
