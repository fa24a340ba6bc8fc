#include "serve/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/host.h"
#include "launch/signals.h"
#include "launch/worker.h"

namespace tessera::serve {
namespace {

using Told = ControlMessage::Kind;
using std::chrono::milliseconds;

// A process that a signal or a debugger stops for longer than this counts as lost.
constexpr auto kMostStopped = std::chrono::seconds(2);
constexpr auto kLook = milliseconds(100);  // between looks at stopped processes
constexpr int kLooksAtSilence = 10;        // before a silent process counts as lost
// A process that was ready for less time than this counts as a failed start.
constexpr auto kUsefulTime = std::chrono::seconds(1);
constexpr auto kFirstPause = milliseconds(100), kLongestPause = milliseconds(5000);
// The front ends by itself when the time to drain is over.
constexpr auto kLastWords = std::chrono::seconds(1);

// Errors that another start would meet again.
bool is_lasting(const launch::Failure& failure) {
  return failure.exit_code == static_cast<int>(ErrorKind::kUsage) ||
         failure.exit_code == static_cast<int>(ErrorKind::kInput) ||
         failure.exit_code == static_cast<int>(ErrorKind::kMemory);
}

milliseconds pause_after(int64_t vain_starts) {
  if (vain_starts < 2) return milliseconds(0);
  return std::min(kLongestPause, kFirstPause * (int64_t{1} << std::min<int64_t>(vain_starts - 2, 10)));
}

launch::Failure failure_of(int status, bool lacks_memory) {
  if (!WIFSIGNALED(status)) {
    if (WEXITSTATUS(status) == 0) return {0, "ended"};
    return {launch::known_exit_code(WEXITSTATUS(status)),
            fmt::format("ended with exit code {}", WEXITSTATUS(status))};
  }
  if (WTERMSIG(status) == SIGKILL && lacks_memory)
    return {static_cast<int>(ErrorKind::kMemory), "was killed by the kernel for lack of memory"};
  return {static_cast<int>(ErrorKind::kPeer),
          fmt::format("was ended by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))};
}

}  // namespace

std::string Supervisor::Child::name() const {
  return world ? fmt::format("world {}", *world) : "front";
}

Supervisor::Supervisor(Options options, ServerProcesses processes)
    : options_(std::move(options)), processes_(std::move(processes)), memory_kills_before_(memory_kills()) {
  children_.resize(static_cast<size_t>(options_.worlds) + 1);
  for (int64_t number = 0; number < options_.worlds; ++number) world(number).world = number;
  // If SIGCHLD were ignored, as the caller may have left it, the system would not report the end of
  // processes.
  ::signal(SIGCHLD, SIG_DFL);
  ::sigemptyset(&signals_);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM}) ::sigaddset(&signals_, number);
  const std::vector<int> ending = launch::ending_signals();  // without those that the caller ignores
  if (std::find(ending.begin(), ending.end(), SIGHUP) != ending.end()) ::sigaddset(&signals_, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  signal_reader_ = Descriptor(::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK));
}

Supervisor::~Supervisor() {
  kill_all();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

launch::Failure Supervisor::run() {
  if (signal_reader_.number() < 0)
    throw Error(ErrorKind::kPeer, "supervisor", "cannot watch signals: " + system_reason(errno));
  // If this is the first process of a container, orphaned ranks are reparented to it anyway.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  while (true) {
    replace_ended();
    if (end_) break;
    wait();
    count_time();
    take_signals();
    collect();
    for (Child& child : children_) read(child);
    kill_lost();
    if (Clock::now() >= drained_by_) end_ = launch::Failure();
  }
  kill_all();
  return *end_;
}

void Supervisor::start(Child& child) {
  auto [own, control] = FrameSocket::make_pair();
  Descriptor port;
  if (child.world) std::tie(child.port, port) = FrameSocket::make_pair();
  child.is_running = true;
  child.is_ready = child.is_stopped = false;
  child.stopped_for = child.silent_for = {};
  child.failure.reset();
  ++child.starts;
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), process = ::fork();
  if (process == 0) become(child, std::move(control), std::move(port), parent);
  if (process < 0) {
    child.failure = launch::Failure{
        static_cast<int>(ErrorKind::kMemory),
        fmt::format("cannot start within the limits on processes and memory: {}", system_reason(errno))};
    return;  // it has ended
  }
  child.process = process;
  child.control.emplace(std::move(own));
  if (child.world) return tell_front_of(child);
  for (int64_t number = 0; number < options_.worlds; ++number) tell_front_of(world(number));
}

// Only the supervisor receives signals from the terminal, and reads it.
void Supervisor::become(const Child& child, Descriptor control, Descriptor port, pid_t parent) {
  const std::optional<int64_t> world = child.world;
  const int64_t restarts = child.starts - 1;
  launch::die_with_only_thread(parent);
  ::setsid();
  ::prctl(PR_SET_NAME, world ? fmt::format("tessera:w{}", *world).c_str() : "tessera:front");
  for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGPIPE}) ::signal(number, SIG_IGN);
  ::signal(SIGTERM, SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  signal_reader_ = Descriptor();
  children_.clear();  // closes the connections to other processes
  launch::Failure failure;
  ControlSocket last_words(Descriptor(::fcntl(control.number(), F_DUPFD_CLOEXEC, 0)));
  try {
    failure = world ? processes_.world(*world, std::move(control), std::move(port))
                    : processes_.front(std::move(control), restarts);
  } catch (...) {
    failure = launch::current_failure();
  }
  if (failure.exit_code != 0) {
    try {
      last_words.tell(
          {.kind = Told::kFailed, .exit_code = failure.exit_code, .text = std::move(failure.message)});
    } catch (const Error&) {  // nobody reads it any more
    }
  }
  std::fflush(nullptr);
  ::_exit(failure.exit_code);
}

void Supervisor::tell(Child& child, ControlMessage message) {
  if (!child.control) return;
  try {
    child.control->tell(std::move(message));
  } catch (const Error&) {  // it ends; read() gets its last words
  }
}

void Supervisor::tell_front_of(Child& world) {
  if (world.starts == 0) return;
  ControlMessage message{.kind = Told::kWorldDown, .world = *world.world, .restarts = world.starts - 1};
  if (world.is_running) {
    message.kind = Told::kWorld;
    message.socket = Descriptor(::fcntl(world.port.number(), F_DUPFD_CLOEXEC, 0));
  } else if (world.failure) {
    message.exit_code = world.failure->exit_code;
    message.text = spell(world.failure->message);
    message.seconds = std::max(0.0, std::chrono::duration<double>(world.next_start - Clock::now()).count());
  }
  tell(front(), std::move(message));
  if (world.is_running && world.is_ready) tell(front(), {.kind = Told::kReady, .world = *world.world});
}

void Supervisor::wait() {
  look_ = options_.most_silence / kLooksAtSilence;
  auto until = drained_by_;
  std::vector<pollfd> polled = {{signal_reader_.number(), POLLIN, 0}};
  for (Child& child : children_) {
    if (!child.is_running) until = std::min(until, child.next_start);
    if (child.is_stopped) look_ = std::min<Clock::duration>(look_, kLook);
    if (!child.control) continue;
    polled.push_back({child.control->descriptor(), POLLIN, 0});
    if (child.control->has_unsent()) polled.back().events |= POLLOUT;
  }
  until = std::min(until, Clock::now() + look_);
  ::poll(polled.data(), polled.size(), static_cast<int>(time_left(until).count()));
}

void Supervisor::take_signals() {
  signalfd_siginfo info;
  while (uninterrupted([&] { return ::read(signal_reader_.number(), &info, sizeof info); }) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;
    if (drained_by_ != Clock::time_point::max()) {
      end_ = launch::Failure{128 + static_cast<int>(info.ssi_signo),
                             "stopped at once; jobs that have not ended go on at the next start"};
      return;
    }
    options_.say(
        fmt::format("stopping after the jobs under way, within {} s; the same signal again stops at once",
                    std::chrono::duration<double>(options_.drain).count()));
    drained_by_ = Clock::now() + options_.drain + kLastWords;
    if (!front().is_running) end_ = launch::Failure();
    tell(front(), {.kind = Told::kDrain, .seconds = std::chrono::duration<double>(options_.drain).count()});
  }
}

void Supervisor::collect() {
  int status = 0;
  while (true) {
    const pid_t process =
        uninterrupted([&] { return ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED); });
    if (process <= 0) return;
    for (Child& child : children_) {
      if (child.process == process) note(child, status);
    }
  }
}

void Supervisor::note(Child& child, int status) {
  if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
    child.is_stopped = WIFSTOPPED(status);
    child.stopped_for = {};
    return;
  }
  child.process = 0;
  child.is_stopped = false;
  read(child);  // its last words
  const uint64_t kills = memory_kills();
  const bool lacks_memory = kills > std::exchange(memory_kills_before_, kills);
  if (!child.failure) child.failure = failure_of(status, lacks_memory);
}

void Supervisor::read(Child& child) {
  try {
    if (child.control) child.control->flush();
  } catch (const Error&) {  // it has ended, and may have sent the reason
  }
  try {
    while (child.control) {
      const auto message = child.control->read();
      if (!message) return;
      child.silent_for = {};
      obey(child, *message);
    }
  } catch (const Error&) {
    child.control.reset();
  }
}

void Supervisor::obey(Child& child, const ControlMessage& message) {
  const bool is_front = !child.world;
  if (message.kind == Told::kFailed) {
    if (!child.failure)
      child.failure = launch::Failure{launch::known_exit_code(message.exit_code), message.text};
  } else if (message.kind == (is_front ? Told::kServing : Told::kReady)) {
    if (is_front && !child.was_ever_ready) options_.on_serving();
    if (!is_front) {
      tell(front(), {.kind = Told::kReady, .world = *child.world});
      options_.say(fmt::format("world {} is ready", *child.world));
    }
    child.is_ready = child.was_ever_ready = true;
    child.ready_since = Clock::now();
  } else if (message.kind == Told::kReplace && is_front && message.world >= 0 &&
             message.world < options_.worlds) {
    kill(world(message.world), message.text);
  }
}

// The time since the last look. Time in which this process itself was stopped, perhaps together with others,
// does not count.
void Supervisor::count_time() {
  const auto now = Clock::now();
  const Clock::duration passed = std::min<Clock::duration>(now - last_look_, 2 * look_);
  last_look_ = now;
  for (Child& child : children_) (child.is_stopped ? child.stopped_for : child.silent_for) += passed;
}

// A draining front may take its time to end, within a limit.
void Supervisor::kill_lost() {
  for (Child& child : children_) {
    if (child.is_stopped && child.stopped_for >= kMostStopped)
      kill(child, fmt::format("was stopped for {} s", kMostStopped.count()));
    if (child.world || drained_by_ != Clock::time_point::max()) continue;
    const milliseconds most = child.is_ready ? options_.most_silence : options_.most_silence_at_start;
    if (child.silent_for >= most)
      kill(child, fmt::format("has been silent for {} s", std::chrono::duration<double>(most).count()));
  }
}

// The ranks of a world die with its process.
void Supervisor::kill(Child& child, const std::string& reason) {
  if (child.process == 0) return;
  if (!child.failure) child.failure = launch::Failure{static_cast<int>(ErrorKind::kPeer), reason};
  ::kill(child.process, SIGKILL);
}

void Supervisor::replace_ended() {
  for (Child& child : children_) {
    if (child.is_running && child.process == 0 && !child.control) ended(child);
    if (end_) return;
    if (!child.is_running && Clock::now() >= child.next_start) start(child);
  }
}

void Supervisor::ended(Child& child) {
  child.is_running = false;
  child.port = Descriptor();
  const launch::Failure& failure = *child.failure;
  if (!child.world && drained_by_ != Clock::time_point::max()) {
    end_ = failure;
    return;
  }
  if (child.starts == 1 && !child.was_ever_ready && is_lasting(failure)) {
    end_ = failure;
    return;
  }
  const bool was_useful = child.is_ready && Clock::now() - child.ready_since >= kUsefulTime;
  child.vain_starts = was_useful ? 0 : child.vain_starts + 1;
  const milliseconds pause = pause_after(child.vain_starts);
  child.next_start = Clock::now() + pause;
  options_.say(fmt::format("{}: {}; it begins again{}", child.name(), failure.message,
                           pause.count() > 0 ? fmt::format(" in {} ms", pause.count()) : ""));
  if (child.world) tell_front_of(child);
}

void Supervisor::kill_all() {
  for (const Child& child : children_) {
    if (child.process != 0) ::kill(child.process, SIGKILL);
  }
  for (Child& child : children_) {
    if (child.process != 0) uninterrupted([&] { return ::waitpid(child.process, nullptr, 0); });
    child.process = 0;
  }
  // The ranks of a world end after its process.
  for (Child& child : children_) {
    const Deadline patience = Clock::now() + std::chrono::seconds(5);
    while (child.control && Clock::now() < patience) {
      pollfd polled = {child.control->descriptor(), POLLIN, 0};
      ::poll(&polled, 1, 100);
      read(child);
    }
    child.is_running = false;
  }
}

}  // namespace tessera::serve
