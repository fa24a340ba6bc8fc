// The process that starts the front and the worlds of a server, watches them, and replaces those that end,
// stop or hang. It has one thread and computes nothing, so that only a signal can end it.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/failure.h"
#include "serve/control.h"

namespace tessera::serve {

// What the processes do, each in a fork of the supervisor. A failure that they return or throw is sent to the
// supervisor (ControlMessage::kFailed), which reports it.
struct ServerProcesses {
  // `control` leads to the supervisor. There were `restarts` fronts before.
  std::function<launch::Failure(Descriptor control, int64_t restarts)> front;
  // `port` leads to the front. Forks of the process may have both, too: a world is over when nobody holds
  // `control` any more.
  std::function<launch::Failure(int64_t world, Descriptor control, Descriptor port)> world;
};

class Supervisor {
 public:
  using Clock = std::chrono::steady_clock;

  // `say` gets the lines for the operators of the server: what was lost and is replaced, and which world is
  // ready. `on_serving` is called when the front answers for the first time. A front counts as hanging if it
  // is silent for `most_silence`, or, before it answers, while it takes up the jobs of its predecessor, for
  // `most_silence_at_start`.
  struct Options {
    int64_t worlds = 1;
    std::chrono::milliseconds drain = std::chrono::seconds(30);
    std::chrono::milliseconds most_silence = std::chrono::seconds(10);
    std::chrono::milliseconds most_silence_at_start = std::chrono::minutes(5);
    std::function<void(const std::string&)> say;
    std::function<void()> on_serving;
  };

  Supervisor(Options options, ServerProcesses processes);
  ~Supervisor();  // no process is left
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts the processes and watches them until the end of the server:
  // - SIGTERM, SIGINT or SIGHUP drains it (ControlMessage::kDrain): exit code 0, even if the work in progress
  //   takes longer than `drain`. The second such signal ends it at once.
  // - The front or a world that says at its first start that it cannot work, because of the request of the
  //   user, the model or lack of memory, ends it with its exit code and message.
  // Any other process that ends, one that is stopped for two seconds, and a front that hangs are killed and
  // replaced: at once, or, if they repeatedly fail to become ready, after up to five seconds. A world
  // outlives the front: its port stays, and the next front gets it. The front reports which worlds hang.
  //
  // All processes die with this one, which must have only one thread.
  launch::Failure run();

 private:
  struct Child {
    std::optional<int64_t> world = {};          // its number; the front has none
    bool is_running = false;                    // or remains of it are
    pid_t process = 0;                          // 0 if it has ended
    std::optional<ControlSocket> control = {};  // until nobody has the other end any more
    Descriptor port = Descriptor();             // for a world: the front's end
    int64_t starts = 0, vain_starts = 0;        // the latter in a row
    bool is_ready = false, was_ever_ready = false;
    Clock::time_point ready_since = {}, next_start = {};
    bool is_stopped = false;
    Clock::duration stopped_for = {}, silent_for = {};
    std::optional<launch::Failure> failure = {};  // of the current process, or the last one

    std::string name() const;
  };

  Child& front() { return children_.front(); }
  Child& world(int64_t number) { return children_.at(static_cast<size_t>(number) + 1); }

  void start(Child& child);
  [[noreturn]] void become(const Child& child, Descriptor control, Descriptor port, pid_t parent);
  void tell(Child& child, ControlMessage message);
  void tell_front_of(Child& world);
  void wait();
  void take_signals();
  void collect();
  void note(Child& child, int status);
  void read(Child& child);
  void obey(Child& child, const ControlMessage& message);
  void count_time();
  void kill_lost();
  void replace_ended();
  void ended(Child& child);
  void kill(Child& child, const std::string& reason);
  void kill_all();

  Options options_;
  ServerProcesses processes_;
  std::vector<Child> children_;  // the front, then the worlds
  sigset_t signals_ = {}, before_ = {};
  Descriptor signal_reader_;
  Clock::time_point last_look_ = Clock::now(), drained_by_ = Clock::time_point::max();
  Clock::duration look_ = {};  // between this look at the processes and the previous one, if neither was late
  uint64_t memory_kills_before_;
  std::optional<launch::Failure> end_;
};

}  // namespace tessera::serve
