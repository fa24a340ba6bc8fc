#include "launch/supervisor.h"

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "launch/signals.h"

namespace tessera::launch {
namespace {

// The supervisor waits this long for more ranks to fail before it blames one, because a dead rank makes its
// peers fail.
constexpr auto kGrace = std::chrono::milliseconds(500);
// Ranks have this long to clean up before they are killed.
constexpr auto kLastWords = std::chrono::seconds(2);
// Stopped ranks are checked at this interval.
constexpr auto kLook = std::chrono::milliseconds(100);

// Returns whether the state in /proc/PID/stat, which follows the name in parentheses, is 'T' or 't'.
bool is_stopped(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && (text[end + 2] == 'T' || text[end + 2] == 't');
}

}  // namespace

BlockedSignals::BlockedSignals() {
  // If SIGCHLD were ignored, as the caller may have left it, the system would not report the end of ranks.
  ::signal(SIGCHLD, SIG_DFL);
  ::sigemptyset(&set_);
  for (const int number : {SIGCHLD, SIGINT}) ::sigaddset(&set_, number);
  for (const int number : ending_signals()) ::sigaddset(&set_, number);
  ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
}

BlockedSignals::~BlockedSignals() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int BlockedSignals::next(Clock::time_point deadline) const {
  if (deadline == Clock::time_point::max()) return std::max(0, ::sigwaitinfo(&set_, nullptr));
  const auto left = std::max(Clock::duration::zero(), deadline - Clock::now());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec time = {
      .tv_sec = seconds.count(),
      .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds).count()};
  return std::max(0, ::sigtimedwait(&set_, nullptr, &time));
}

void Supervisor::add(pid_t process) {
  processes_.push_back(process);
  ends_.emplace_back();
  stopped_for_.emplace_back();
}

Failure Supervisor::run() {
  // A signal may have arrived before this took over.
  asked_to_end_ = interrupted();
  if (asked_to_end_) statuses_.ask_to_end();
  while (true) {
    collect();
    if (all_done()) return {};
    if (const auto over = judge_if_over()) {
      end_all();
      return *over;
    }
    const int number = signals_.next(next_deadline());
    if (number == SIGINT && !asked_to_end_) {
      asked_to_end_ = true;
      say_end();
      statuses_.ask_to_end();
    } else if (number != 0 && number != SIGCHLD) {
      end_all();
      return {128 + number, "stopped at once; " + what_is_left()};
    }
  }
}

void Supervisor::end_all() {
  signal_all(SIGTERM);
  const auto deadline = Clock::now() + kLastWords;
  while (any_alive() && Clock::now() < deadline) {
    // SIGTERM does not end a stopped process, but SIGKILL does.
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (alive(i) && is_stopped(processes_[i])) ::kill(processes_[i], SIGKILL);
    }
    signals_.next(std::min(deadline, Clock::now() + std::chrono::milliseconds(50)));
    collect();
  }
  signal_all(SIGKILL);
  for (size_t i = 0; i < processes_.size(); ++i) {
    while (alive(i) && ::waitpid(processes_[i], nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

bool Supervisor::alive(size_t i) const {
  return ends_[i].state == State::kRunning || ends_[i].state == State::kStopped;
}

bool Supervisor::any_alive() const {
  for (size_t i = 0; i < ends_.size(); ++i) {
    if (alive(i)) return true;
  }
  return false;
}

bool Supervisor::all_done() const {
  return std::all_of(ends_.begin(), ends_.end(),
                     [](const RankEnd& end) { return end.state == State::kDone; });
}

void Supervisor::signal_all(int number) const {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (alive(i)) ::kill(processes_[i], number);
  }
}

// Records what has happened to the ranks since the last call.
void Supervisor::collect() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    int status = 0;
    while (alive(i) && ::waitpid(processes_[i], &status, WNOHANG | WUNTRACED | WCONTINUED) > 0)
      note(i, status);
  }
  const auto now = Clock::now();
  // The time during which this process itself was stopped, perhaps together with the ranks, does not count.
  const auto passed = std::min<Clock::duration>(now - last_look_, 2 * kLook);
  last_look_ = now;
  for (size_t i = 0; i < ends_.size(); ++i)
    stopped_for_[i] = ends_[i].state == State::kStopped ? stopped_for_[i] + passed : Clock::duration::zero();
}

void Supervisor::note(size_t i, int status) {
  RankEnd& end = ends_[i];
  if (WIFSTOPPED(status)) {
    end.state = State::kStopped;
    return;
  }
  if (WIFCONTINUED(status)) {
    end.state = State::kRunning;
    return;
  }
  end.order = ++ends_seen_;
  const RankStatus& status_of_rank = statuses_.rank(static_cast<int64_t>(i));
  if (WIFSIGNALED(status)) {
    end.state = State::kKilled;
    end.signal = WTERMSIG(status);
    end.no_memory = end.signal == SIGKILL && memory_kills() > memory_kills_before_;
  } else if (const auto failure = status_of_rank.failure()) {
    end.state = State::kFailed;
    end.failure = *failure;
  } else if (WEXITSTATUS(status) == 0) {
    end.state = State::kDone;
    return;
  } else if (WEXITSTATUS(status) > 128) {  // as left by the handler of ending signals
    end.state = State::kKilled;
    end.signal = WEXITSTATUS(status) - 128;
  } else {
    end.state = State::kFailed;
    end.failure = {kInternalError, fmt::format("ended with exit code {}", WEXITSTATUS(status))};
  }
  if (first_failure_ == Clock::time_point::max()) first_failure_ = Clock::now();
}

bool Supervisor::is_stopped_too_long() const {
  return std::any_of(stopped_for_.begin(), stopped_for_.end(),
                     [this](const Clock::duration time) { return time >= timeout_; });
}

Supervisor::Clock::time_point Supervisor::next_deadline() const {
  if (first_failure_ != Clock::time_point::max()) return first_failure_ + kGrace;
  const bool any = std::any_of(ends_.begin(), ends_.end(),
                               [](const RankEnd& end) { return end.state == State::kStopped; });
  return any ? Clock::now() + kLook : Clock::time_point::max();
}

std::optional<Failure> Supervisor::judge_if_over() {
  const bool failed = first_failure_ != Clock::time_point::max();
  if (failed ? may_change(ends_) && Clock::now() < first_failure_ + kGrace : !is_stopped_too_long())
    return std::nullopt;
  for (size_t i = 0; i < ends_.size(); ++i) ends_[i].place = statuses_.rank(static_cast<int64_t>(i)).place();
  Failure failure = judge(ends_, timeout_);
  // Ranks that do not write files do not know about those of the first rank.
  if (failure.exit_code == kInterrupted) failure.message = "stopped; " + what_is_left();
  return failure;
}

std::string Supervisor::what_is_left() const {
  return statuses_.rank(0).has_files() ? "finished files stay" : "nothing was written";
}

}  // namespace tessera::launch
