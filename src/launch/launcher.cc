#include "launch/launcher.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

#include "core/error.h"
#include "launch/signals.h"
#include "launch/streams.h"
#include "launch/verdict.h"

namespace tessera::launch {
namespace {

using Clock = std::chrono::steady_clock;
using State = RankEnd::State;

// How long to wait for more ranks to fail before one is blamed: the dead take their neighbours with them.
constexpr auto kGrace = std::chrono::milliseconds(500);
// What ranks have to put things away before they are killed.
constexpr auto kLastWords = std::chrono::seconds(2);

[[noreturn]] void cannot(const char* what) {
  throw Error(ErrorKind::kPeer, "launcher",
              fmt::format("cannot {}: {}", what, std::generic_category().message(errno)));
}

// A socket that listens on a free port of the loopback device. Bound before there are ranks, so that nobody
// can take the port between its choice and its use.
class ListeningSocket {
 public:
  ListeningSocket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (descriptor_ < 0) cannot("open a socket");
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    if (::bind(descriptor_, name, length) != 0 || ::listen(descriptor_, SOMAXCONN) != 0 ||
        ::getsockname(descriptor_, name, &length) != 0) {
      cannot("listen on 127.0.0.1");
    }
    port_ = ntohs(address.sin_port);
  }
  ~ListeningSocket() { ::close(descriptor_); }
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  int descriptor() const { return descriptor_; }
  uint16_t port() const { return port_; }

 private:
  int descriptor_;
  uint16_t port_ = 0;
};

// Signals that the watching process takes one by one, as long as this lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    ::signal(SIGCHLD, SIG_DFL);  // ignored, as a caller may have left it, nobody would be told of an end
    ::sigemptyset(&set_);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM}) ::sigaddset(&set_, number);
    if (!ignores_hangup()) ::sigaddset(&set_, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { restore(); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  void restore() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  // The next signal, or 0 at `deadline`.
  int next(Clock::time_point deadline) const {
    if (deadline == Clock::time_point::max()) return std::max(0, ::sigwaitinfo(&set_, nullptr));
    const auto left = std::max(Clock::duration::zero(), deadline - Clock::now());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec time = {
        .tv_sec = seconds.count(),
        .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds).count()};
    return std::max(0, ::sigtimedwait(&set_, nullptr, &time));
  }

 private:
  sigset_t set_, before_;
};

// 'T' or 't' of /proc/PID/stat, behind the name in brackets.
bool is_stopped(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && (text[end + 2] == 'T' || text[end + 2] == 't');
}

class Watch {
 public:
  Watch(const Board& board, std::chrono::milliseconds timeout, const BlockedSignals& signals)
      : board_(board), timeout_(timeout), signals_(signals) {}

  void add(pid_t process) {
    processes_.push_back(process);
    ends_.emplace_back();
    stopped_since_.push_back(Clock::time_point::max());
  }
  const std::vector<pid_t>& processes() const { return processes_; }

  // Until all ranks are done, or one is to blame; then none is left.
  Failure run(Board& board) {
    while (true) {
      collect();
      if (all(State::kDone)) return {};
      if (const auto over = judge_if_over()) {
        end_all();
        return *over;
      }
      const int number = signals_.next(next_deadline());
      if (number == SIGINT && !asked_to_end_) {
        asked_to_end_ = true;
        say("\ntessera: stopping after this step; Ctrl-C again stops at once\n");
        board.ask_to_end();
      } else if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
        end_all();
        return {128 + number, "stopped at once; nothing was written"};
      }
    }
  }

  // No rank outlives this.
  void end_all() {
    signal_all(SIGTERM);
    const auto deadline = Clock::now() + kLastWords;
    while (any_alive() && Clock::now() < deadline) {
      // A signal cannot end what is stopped, but SIGKILL can.
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

 private:
  bool alive(size_t i) const {
    return ends_[i].state == State::kRunning || ends_[i].state == State::kStopped;
  }
  bool any_alive() const {
    for (size_t i = 0; i < ends_.size(); ++i) {
      if (alive(i)) return true;
    }
    return false;
  }
  bool all(State state) const {
    return std::all_of(ends_.begin(), ends_.end(), [&](const RankEnd& end) { return end.state == state; });
  }
  void signal_all(int number) const {
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (alive(i)) ::kill(processes_[i], number);
    }
  }

  // What happened to the ranks since the last time.
  void collect() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      int status = 0;
      while (alive(i) && ::waitpid(processes_[i], &status, WNOHANG | WUNTRACED | WCONTINUED) > 0)
        note(i, status);
    }
  }

  void note(size_t i, int status) {
    RankEnd& end = ends_[i];
    if (WIFSTOPPED(status)) {
      end.state = State::kStopped;
      stopped_since_[i] = Clock::now();
      return;
    }
    stopped_since_[i] = Clock::time_point::max();
    if (WIFCONTINUED(status)) {
      end.state = State::kRunning;
      return;
    }
    end.order = ++ends_seen_;
    const RankStatus& told = board_.rank(static_cast<int64_t>(i));
    if (WIFSIGNALED(status)) {
      end.state = State::kKilled;
      end.signal = WTERMSIG(status);
    } else if (const auto failure = told.failure()) {
      end.state = State::kFailed;
      end.failure = *failure;
    } else if (WEXITSTATUS(status) == 0) {
      end.state = State::kDone;
      return;
    } else if (WEXITSTATUS(status) > 128) {  // what the handlers of SIGTERM and SIGHUP leave
      end.state = State::kKilled;
      end.signal = WEXITSTATUS(status) - 128;
    } else {
      end.state = State::kFailed;
      end.failure = {kInternalError, fmt::format("ended with exit code {}", WEXITSTATUS(status))};
    }
    if (first_failure_ == Clock::time_point::max()) first_failure_ = Clock::now();
  }

  Clock::time_point stop_deadline() const {
    Clock::time_point first = Clock::time_point::max();
    for (const Clock::time_point since : stopped_since_) first = std::min(first, since);
    return first == Clock::time_point::max() ? first : first + timeout_;
  }

  Clock::time_point next_deadline() const {
    return std::min(first_failure_ == Clock::time_point::max() ? first_failure_ : first_failure_ + kGrace,
                    stop_deadline());
  }

  std::optional<Failure> judge_if_over() {
    const bool failed = first_failure_ != Clock::time_point::max();
    if (failed ? may_change(ends_) && Clock::now() < first_failure_ + kGrace : Clock::now() < stop_deadline())
      return std::nullopt;
    for (size_t i = 0; i < ends_.size(); ++i) ends_[i].place = board_.rank(static_cast<int64_t>(i)).place();
    return judge(ends_, timeout_);
  }

  const Board& board_;
  std::chrono::milliseconds timeout_;
  const BlockedSignals& signals_;
  std::vector<pid_t> processes_;
  std::vector<RankEnd> ends_;
  std::vector<Clock::time_point> stopped_since_;
  Clock::time_point first_failure_ = Clock::time_point::max();
  int64_t ends_seen_ = 0;
  bool asked_to_end_ = false;
};

// Runs the body and ends the process, without the cleaning up that would wait for other ranks.
[[noreturn]] void run_child(const comm::Rendezvous& place, pid_t parent, Board& board,
                            const BlockedSignals& signals,
                            const std::function<void(const comm::Rendezvous&, Board&)>& body) {
  RankStatus& status = board.rank(place.rank);
  int exit_code = 0;
  try {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(128 + SIGKILL);  // it was gone before
    ::prctl(PR_SET_NAME, fmt::format("tessera:{}", place.rank).c_str());
    leave_interrupts_to_parent();
    signals.restore();
    body(place, board);
    flush_output();
  } catch (...) {
    const Failure failure = current_failure();
    status.failed(failure);
    exit_code = failure.exit_code;
  }
  ::_exit(exit_code);
}

}  // namespace

Launched launch_ranks(int64_t ranks, const comm::Rendezvous& common,
                      const std::function<void(const comm::Rendezvous&, Board&)>& body) {
  Board board(ranks);
  const BlockedSignals signals;
  Watch watch(board, common.timeout, signals);
  {
    const ListeningSocket socket;
    const pid_t parent = ::getpid();
    std::fflush(nullptr);  // or every rank would print what stands in the buffers
    for (int64_t rank = 0; rank < ranks; ++rank) {
      comm::Rendezvous place = common;
      place.rank = place.local_rank = rank;
      place.world_size = place.local_world_size = ranks;
      place.address = "127.0.0.1";
      place.port = socket.port();
      if (rank == 0) place.listening_socket = socket.descriptor();
      const pid_t process = ::fork();
      if (process < 0) {
        const int reason = errno;
        watch.end_all();
        errno = reason;
        cannot(fmt::format("start rank {} of {}", rank, ranks).c_str());
      }
      if (process == 0) {
        if (rank != 0) ::close(socket.descriptor());
        run_child(place, parent, board, signals, body);
      }
      watch.add(process);
    }
  }
  Failure failure = watch.run(board);
  return {std::move(failure), watch.processes()};
}

}  // namespace tessera::launch
