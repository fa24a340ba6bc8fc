#include "launch/verdict.h"

#include <signal.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/text.h"
#include "launch/signals.h"

namespace tessera::launch {
namespace {

using State = RankEnd::State;

constexpr int kPeer = static_cast<int>(ErrorKind::kPeer);

bool is_of_users(int exit_code) {
  return exit_code == static_cast<int>(ErrorKind::kUsage) || exit_code == static_cast<int>(ErrorKind::kInput);
}

// Returns the rank that ended first among those that satisfy `matches`.
template <typename Matches>
std::optional<size_t> first(std::span<const RankEnd> ranks, const Matches& matches) {
  std::optional<size_t> found;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (matches(ranks[i]) && (!found || ranks[i].order < ranks[*found].order)) found = i;
  }
  return found;
}

bool all_alike(std::span<const RankEnd> ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const RankEnd& end) {
    return end.state == State::kFailed && end.failure.message == ranks[0].failure.message;
  });
}

bool may_be_of_all(int signal) {
  const std::vector<int> all = ending_signals();
  return std::find(all.begin(), all.end(), signal) != all.end();
}

Failure blame(size_t rank, const std::string& what) {
  return {kPeer, fmt::format("[rank {}] {}; the run is over", rank, what)};
}

Failure blame_killed(size_t rank, const RankEnd& end) {
  if (end.no_memory) {
    Failure failure =
        blame(rank, fmt::format("killed by the kernel {}: [memory] not enough memory", end.place));
    failure.exit_code = static_cast<int>(ErrorKind::kMemory);
    return failure;
  }
  const char* name = ::sigabbrev_np(end.signal);
  std::string details = name ? fmt::format("SIG{}", name) : "";
  if (end.signal == SIGKILL) details += ", as the kernel does when memory runs out";
  return blame(rank, fmt::format("killed by signal {}{} {}", end.signal,
                                 details.empty() ? "" : fmt::format(" ({})", details), end.place));
}

}  // namespace

Failure judge(std::span<const RankEnd> ranks, std::chrono::milliseconds timeout) {
  const auto cancelled = first(ranks, [](const RankEnd& end) {
    return end.state == State::kFailed && end.failure.exit_code == kInterrupted;
  });
  if (cancelled) return ranks[*cancelled].failure;

  if (const auto killed = first(ranks, [](const RankEnd& end) { return end.state == State::kKilled; })) {
    return blame_killed(*killed, ranks[*killed]);
  }
  const auto failed = first(ranks, [](const RankEnd& end) {
    return end.state == State::kFailed && end.failure.exit_code != kPeer;
  });
  if (failed) {
    const RankEnd& end = ranks[*failed];
    if (is_of_users(end.failure.exit_code) || all_alike(ranks)) return end.failure;
    Failure failure = blame(*failed, fmt::format("failed {}: {}", end.place, end.failure.message));
    failure.exit_code = end.failure.exit_code;
    return failure;
  }
  if (const auto stopped = first(ranks, [](const RankEnd& end) { return end.state == State::kStopped; })) {
    return blame(*stopped, fmt::format("was stopped by a signal or a debugger {}", ranks[*stopped].place));
  }
  const auto waited = first(ranks, [](const RankEnd& end) { return end.state == State::kFailed; });
  TESSERA_CHECK(waited, "no rank is to blame");
  const RankEnd& end = ranks[*waited];
  // A rank may wait for one that itself waits for a third. The one to blame is still running.
  const std::optional<int64_t> peer = end.failure.peer;
  if (peer && *peer >= 0 && *peer < static_cast<int64_t>(ranks.size())) {
    const auto silent = static_cast<size_t>(*peer);
    if (ranks[silent].state == State::kRunning) {
      return blame(silent, fmt::format("gave no sign of life within {} {}", seconds_text(timeout),
                                       ranks[silent].place));
    }
  }
  return {end.failure.exit_code,
          fmt::format("{}, reported by rank {} {}", end.failure.message, *waited, end.place)};
}

bool may_change(std::span<const RankEnd> ranks) {
  const bool certain = std::any_of(ranks.begin(), ranks.end(), [](const RankEnd& end) {
    // Such a signal may have been sent to all processes, and the supervisor may not have received its own
    // yet.
    return (end.state == State::kKilled && !may_be_of_all(end.signal)) ||
           (end.state == State::kFailed && is_of_users(end.failure.exit_code));
  });
  const bool over = std::all_of(ranks.begin(), ranks.end(), [](const RankEnd& end) {
    return end.state != State::kRunning && end.state != State::kStopped;
  });
  return !certain && !over;
}

}  // namespace tessera::launch
