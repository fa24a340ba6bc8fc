#include "plan/planner/recorded_run.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "plan/run_costs.h"

namespace tessera::plan {
namespace {

// The part of a run in one phase: the events, and the waits for messages that began among them.
RankTrace phase_of(const RankTrace& rank, Phase phase) {
  RankTrace part{.rank = rank.rank, .events = {}};
  std::set<int64_t> posted;
  for (const Event& event : rank.events) {
    if (event.phase != phase) continue;
    if (const auto* const collective = std::get_if<CollectiveEvent>(&event.what))
      posted.insert(collective->number);
    if (const auto* const wait = std::get_if<WaitEvent>(&event.what); wait && !posted.contains(wait->number))
      continue;
    part.events.push_back(event);
  }
  return part;
}

double seconds_of(const RankTrace& part) {
  if (part.events.empty()) return 0;
  double begin = part.events.front().time->begin, end = begin;
  for (const Event& event : part.events) {
    begin = std::min(begin, event.time->begin);
    end = std::max(end, event.time->end);
  }
  return end - begin;
}

}  // namespace

RecordedOn recorded_on(const Trace& trace, const std::string& where) {
  if (std::ssize(trace.ranks) != trace.world_size)
    input_error(where, "holds {} of {} ranks; a fit needs the recording of all", trace.ranks.size(),
                trace.world_size);
  for (const RankTrace& rank : trace.ranks) {
    if (std::none_of(rank.events.begin(), rank.events.end(),
                     [](const Event& event) { return event.phase == Phase::kDenoise; }))
      input_error(where, "rank {} has denoised nothing", rank.rank);
    if (std::any_of(rank.events.begin(), rank.events.end(), [](const Event& event) { return !event.time; }))
      input_error(where, "is a trace from shapes, which took no time; record a run with {}", field("record"));
  }
  const JsonConfig settings(trace.settings, fmt::format("{}: settings", where));
  if (!settings.has("dtype") || !settings.has("threads"))
    input_error(where, "does not tell the {} of its ranks, as of an older version; record the run again",
                settings.has("dtype") ? "threads" : "dtype");
  constexpr int64_t kMostThreads = 1 << 20;
  return {printable(settings.string("dtype")), settings.count("threads", kMostThreads)};
}

std::vector<MeasuredRun> measured_phases(const Trace& trace, OperationCosts& costs,
                                         const std::string& where) {
  std::vector<MeasuredRun> phases;
  for (const Phase phase : {Phase::kDenoise, Phase::kDecode}) {
    Trace part{.model = trace.model,
               .settings = trace.settings,
               .world_size = trace.world_size,
               .steps = trace.steps,
               .traced_steps = trace.traced_steps,
               .ranks = {}};
    double seconds = 0;
    for (const RankTrace& rank : trace.ranks) {
      part.ranks.push_back(phase_of(rank, phase));
      seconds = std::max(seconds, seconds_of(part.ranks.back()));
    }
    if (seconds == 0) continue;
    MeasuredRun& run = phases.emplace_back();
    run.name = fmt::format("{}, {}", where, phase == Phase::kDenoise ? "denoising" : "decoding");
    run.seconds = seconds;
    run.devices = trace.world_size;
    run.pieces.push_back({schedule_of(part, costs, where), trace.steps, 1});
  }
  return phases;
}

}  // namespace tessera::plan
