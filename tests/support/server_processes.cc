#include "tests/support/server_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "core/error.h"
#include "launch/launcher.h"

namespace tessera::serve {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = ControlMessage::Kind;
using std::chrono::milliseconds;
constexpr auto kLong = std::chrono::seconds(20);

// Also a process that nobody has collected.
bool is_gone(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t end = text.rfind(')');
  return end == std::string::npos || text.substr(end + 2, 1) == "Z" || text.substr(end + 2, 1) == "X";
}

bool waits_for(const Clock::time_point deadline) {
  std::this_thread::sleep_for(milliseconds(5));
  return Clock::now() < deadline;
}

}  // namespace

Lines::Lines() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::kPeer, "test", "no pipe");
  reading_ = Descriptor(ends[0]);
  writing_ = Descriptor(ends[1]);
}

void Lines::say(const std::string& line) const {
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(writing_.number(), text.data(), text.size());
}

void Lines::read(milliseconds wait) {
  pollfd polled = {reading_.number(), POLLIN, 0};
  while (::poll(&polled, 1, static_cast<int>(wait.count())) == 1) {
    char block[4096];
    const ssize_t got = ::read(reading_.number(), block, sizeof block);
    if (got <= 0) return;
    rest_.append(block, static_cast<size_t>(got));
    for (size_t end = 0; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1))
      lines_.push_back(rest_.substr(0, end));
    wait = milliseconds(0);
  }
}

std::string Lines::await(const std::string& words, size_t count) {
  const auto deadline = Clock::now() + kLong;
  while (this->count(words) < count) {
    if (Clock::now() >= deadline) return "";
    read(milliseconds(20));
  }
  return *std::find_if(lines_.rbegin(), lines_.rend(),
                       [&](const std::string& line) { return line.starts_with(words); });
}

size_t Lines::count(const std::string& words) {
  read(milliseconds(0));
  return static_cast<size_t>(std::count_if(lines_.begin(), lines_.end(),
                                           [&](const std::string& line) { return line.starts_with(words); }));
}

const std::vector<std::string>& Lines::all() {
  read(milliseconds(0));
  return lines_;
}

int64_t number_in(const std::string& line) {
  return line.empty() ? 0 : std::stoll(line.substr(line.rfind(' ') + 1));
}

TestServer::TestServer(Plan plan) : plan_(std::move(plan)) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::kPeer, "test", "no pipe");
  asked_ = Descriptor(ends[0]);
  asking_ = Descriptor(ends[1]);
  process_ = ::fork();
  if (process_ != 0) return;
  ::setsid();
  launch::Failure failure;
  try {
    Supervisor supervisor(
        {.worlds = plan_.worlds,
         .drain = plan_.drain,
         .most_silence = plan_.most_silence,
         .most_silence_at_start = plan_.most_silence_at_start,
         .say = [this](const std::string& line) { lines_.say("says " + line); },
         .on_serving = [this] { lines_.say("serving"); }},
        {.front = [this](Descriptor control,
                         int64_t restarts) { return run_front(std::move(control), restarts); },
         .world = [this](
                      int64_t number, Descriptor control,
                      Descriptor port) { return run_world(number, std::move(control), std::move(port)); }});
    failure = supervisor.run();
  } catch (...) {
    failure = launch::current_failure();
  }
  if (failure.exit_code != 0) lines_.say("ends: " + failure.message);
  ::_exit(failure.exit_code);
}

TestServer::~TestServer() {
  if (status_) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

void TestServer::ask() const {
  EXPECT_EQ(::write(asking_.number(), "?", 1), 1);
}

void TestServer::replace(int64_t number) const {
  const char digit = static_cast<char>('0' + number);
  EXPECT_EQ(::write(asking_.number(), &digit, 1), 1);
}

void TestServer::hang() const {
  EXPECT_EQ(::write(asking_.number(), "h", 1), 1);
}

int TestServer::exit_code() {
  const auto deadline = Clock::now() + kLong;
  int status = 0;
  while (!status_ && waits_for(deadline)) {
    if (::waitpid(process_, &status, WNOHANG) == process_) status_ = status;
  }
  return status_ && WIFEXITED(*status_) ? WEXITSTATUS(*status_) : -1;
}

bool TestServer::is_all_gone() {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  const auto is_left = [](const std::string& line) {
    const bool is_process =
        line.starts_with("front ") || line.starts_with("world ") || line.starts_with("rank ");
    return is_process && !is_gone(static_cast<pid_t>(number_in(line)));
  };
  while (std::any_of(lines_.all().begin(), lines_.all().end(), is_left)) {
    if (!waits_for(deadline)) return false;
  }
  return true;
}

namespace {

// The front's side of the worlds.
class TestFront {
 public:
  TestFront(const Lines& lines, Descriptor control, bool ignores_drain)
      : lines_(lines), control_(std::move(control)), ignores_drain_(ignores_drain) {}

  // Returns when it is drained.
  void run(int asked) {
    control_.tell({.kind = Kind::kServing});
    while (!is_drained_) {
      std::vector<pollfd> polled = {{control_.descriptor(), POLLIN, 0}, {asked, POLLIN, 0}};
      for (const auto& [number, world] : worlds_) polled.push_back({world.descriptor(), POLLIN, 0});
      ::poll(polled.data(), polled.size(), 100);
      control_.tell({.kind = Kind::kAlive});
      while (auto message = control_.read()) obey(*message);
      if ((polled[1].revents & POLLIN) != 0) be_asked(asked);
      for (auto at = worlds_.begin(); at != worlds_.end();)
        at = listen(*at) ? std::next(at) : worlds_.erase(at);
    }
  }

 private:
  void obey(ControlMessage& message) {
    if (message.kind == Kind::kWorld) {
      worlds_.erase(message.world);
      ask(worlds_.emplace(message.world, FrameSocket(std::move(message.socket))).first->second);
    } else if (message.kind == Kind::kWorldDown) {
      lines_.say(fmt::format("down {}: {}", message.world, message.text));
    } else if (message.kind == Kind::kReady) {
      lines_.say(fmt::format("loaded {}", message.world));
    } else if (message.kind == Kind::kDrain) {
      lines_.say("drain");
      is_drained_ = !ignores_drain_;
    }
  }

  static void ask(FrameSocket& world) {
    try {
      world.send({.text = "?", .data = ""});
    } catch (const Error&) {  // it is gone, which listen() finds
    }
  }

  void be_asked(int asked) {
    char what = 0;
    if (::read(asked, &what, 1) != 1) return;
    if (what == 'h') {
      lines_.say("hangs");
      return be_asked(asked);
    }
    if (what != '?')
      return control_.tell({.kind = Kind::kReplace, .world = what - '0', .text = "does not answer"});
    for (auto& [number, world] : worlds_) ask(world);
  }

  bool listen(std::pair<const int64_t, FrameSocket>& world) {
    try {
      while (const auto frame = world.second.read())
        lines_.say(fmt::format("answer {} {}", world.first, frame->text));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  const Lines& lines_;
  ControlSocket control_;
  const bool ignores_drain_;
  std::map<int64_t, FrameSocket> worlds_;
  bool is_drained_ = false;
};

}  // namespace

launch::Failure TestServer::run_front(Descriptor control, int64_t restarts) {
  lines_.say(fmt::format("fronts before: {}", restarts));
  lines_.say(fmt::format("front {}", ::getpid()));
  if (plan_.front_instead) {
    if (const auto failure = plan_.front_instead()) return *failure;
  }
  TestFront(lines_, std::move(control), plan_.front_ignores_drain).run(asked_.number());
  return {};
}

launch::Failure TestServer::run_world(int64_t number, Descriptor control, Descriptor port) {
  const pid_t launcher = ::getpid();
  lines_.say(fmt::format("world {} {}", number, launcher));
  if (plan_.world_instead) {
    if (const auto failure = plan_.world_instead(number)) return *failure;
  }
  return launch::launch_ranks(plan_.ranks, std::chrono::seconds(2), [&](const launch::Worker& worker) {
    lines_.say(fmt::format("rank {} {} {}", number, worker.rendezvous.rank, ::getpid()));
    while (worker.rendezvous.rank != 0) ::pause();
    FrameSocket front(std::move(port));
    ControlSocket(std::move(control)).tell({.kind = Kind::kReady});
    try {
      while (true) {
        if (front.read(kLong)) front.send({.text = std::to_string(launcher), .data = ""});
      }
    } catch (const Error& error) {
      return error.exit_code();
    }
  });
}

}  // namespace tessera::serve
