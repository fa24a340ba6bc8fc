#include "plan/schedule.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace tessera::plan {
namespace {

// Exchanges on a channel take place in the order in which they are posted: those of a group's ranks on its
// axis, or single messages between a sender and a receiver.
using Channel = std::pair<std::vector<int64_t>, std::string>;

bool is_single(const CollectiveEvent& collective) {
  return collective.name == "send" || collective.name == "receive";
}

class Maker {
 public:
  Maker(const Trace& trace, const std::vector<size_t>& stands_for) : trace_(trace), stands_for_(stands_for) {}

  Task task_of(const RankTrace& rank, const Event& event) {
    Task task;
    if (const auto* const operation = std::get_if<OperationEvent>(&event.what)) {
      task.launches = launches_of(operation->name);
    } else if (const auto* const collective = std::get_if<CollectiveEvent>(&event.what)) {
      task.kind = Task::Kind::kPost;
      task.number = collective->number;
      task.sent = static_cast<double>(collective->bytes);
      for (const Transfer& transfer : collective->receives)
        task.received += static_cast<double>(transfer.bytes);
      task.meeting = meeting_of(rank.rank, *collective, task);
    } else {
      task.kind = Task::Kind::kWait;
      task.number = std::get<WaitEvent>(event.what).number;
    }
    return task;
  }

  Schedule schedule;

 private:
  bool is_simulated(int64_t rank) const {
    return stands_for_.empty() || trace_.ranks[stands_for_[static_cast<size_t>(rank)]].rank == rank;
  }

  std::vector<int64_t> members_of(int64_t own, const CollectiveEvent& collective) const {
    if (!is_single(collective)) return collective.ranks;
    const bool sends = collective.name == "send";
    const auto& transfers = sends ? collective.sends : collective.receives;
    const int64_t peer = transfers.empty() ? own : transfers.front().peer;
    return sends ? std::vector{own, peer} : std::vector{peer, own};
  }

  int32_t meeting_of(int64_t own, const CollectiveEvent& collective, const Task& task) {
    std::vector<int64_t> members = members_of(own, collective);
    const auto [first, last] = std::minmax_element(members.begin(), members.end());
    MeetingKind kind;
    kind.first = *first;
    kind.last = *last;
    kind.transmission = {.name = collective.name,
                         // Displaced patches send the same to all, like a gather.
                         .parts_differ = collective.name == "all_to_all" && collective.axis == "ulysses",
                         .ranks = static_cast<int64_t>(collective.ranks.size()),
                         .peers = static_cast<int64_t>(collective.sends.size()),
                         .sent = task.sent,
                         .received = task.received};
    // Ranks that are not simulated are ready when those that do the same are.
    std::erase_if(members, [&](int64_t member) { return !is_simulated(member); });
    if (!is_single(collective)) std::sort(members.begin(), members.end());
    kind.members = members.size() == 2 && members[0] == members[1] ? 1 : static_cast<int32_t>(members.size());
    const Channel channel = {std::move(members),
                             is_single(collective) ? collective.axis + " single" : collective.axis};
    kind.channel = channels_.try_emplace(channel, static_cast<int32_t>(channels_.size())).first->second;
    schedule.channels = static_cast<int32_t>(channels_.size());
    const auto key = std::tuple(kind.channel, kind.members, kind.first, kind.last, collective.name,
                                kind.transmission.peers, task.sent, task.received);
    const auto [place, is_new] = meetings_.try_emplace(key, static_cast<int32_t>(schedule.meetings.size()));
    if (is_new) schedule.meetings.push_back(std::move(kind));
    return place->second;
  }

  const Trace& trace_;
  const std::vector<size_t>& stands_for_;
  std::map<Channel, int32_t> channels_;
  std::map<std::tuple<int32_t, int32_t, int64_t, int64_t, std::string, int64_t, double, double>, int32_t>
      meetings_;
};

std::vector<Stretch> program_of(const RankTrace& rank, int64_t steady) {
  std::vector<Stretch> program;
  Part part;
  for (size_t begin = 0; begin < rank.events.size();) {
    const Event& first = rank.events[begin];
    if (begin > 0 && first.phase < part.phase) ++part.round;
    part = {part.round, first.phase, first.phase == Phase::kDenoise ? first.step : 0, 0};
    Stretch stretch{.part = part, .begin = begin, .end = begin};
    for (; stretch.end < rank.events.size(); ++stretch.end) {
      const Event& event = rank.events[stretch.end];
      if (event.phase != first.phase || event.step != first.step) break;
      stretch.posts += std::holds_alternative<CollectiveEvent>(event.what) ? 1 : 0;
    }
    stretch.is_steady = first.phase == Phase::kDenoise && first.step == steady;
    begin = stretch.end;
    program.push_back(stretch);
  }
  return program;
}

}  // namespace

int64_t launches_of(const std::string& name) {
  if (name.starts_with("aten::")) return 0;
  return name == "attention_part" ? kLaunchesOfAttentionPart : 1;
}

Schedule make_schedule(const Trace& trace, const std::vector<std::vector<double>>& seconds,
                       const std::vector<std::vector<WorkKind>>& kinds, const std::string& where,
                       const std::vector<size_t>& stands_for) {
  if (stands_for.empty() && static_cast<int64_t>(trace.ranks.size()) < trace.world_size)
    input_error(where, "holds {} of {} ranks; a timeline needs all", trace.ranks.size(), trace.world_size);
  Maker maker(trace, stands_for);
  const int64_t steady = steady_step(trace.traced_steps);
  for (size_t i = 0; i < trace.ranks.size(); ++i) {
    const RankTrace& rank = trace.ranks[i];
    RankSchedule made{.rank = rank.rank, .tasks = {}, .program = program_of(rank, steady)};
    made.tasks.reserve(rank.events.size());
    for (size_t event = 0; event < rank.events.size(); ++event) {
      Task& task = made.tasks.emplace_back(maker.task_of(rank, rank.events[event]));
      task.seconds = seconds[i][event];
      if (!kinds.empty()) task.work = kinds[i][event];
    }
    maker.schedule.ranks.push_back(std::move(made));
  }
  maker.schedule.traced_steps = trace.traced_steps;
  return std::move(maker.schedule);
}

}  // namespace tessera::plan
