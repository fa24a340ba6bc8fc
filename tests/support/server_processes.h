// A server whose front and worlds do next to nothing, in a fork of the test, and what its processes say.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/system_call.h"
#include "serve/supervisor.h"

namespace tessera::serve {

// The lines that all processes of a server write, in one order.
class Lines {
 public:
  Lines();

  // Is called by the processes.
  void say(const std::string& line) const;

  // Waits until `count` lines begin with the words, and returns the last one; empty if none comes in 20 s.
  std::string await(const std::string& words, size_t count = 1);
  size_t count(const std::string& words);
  const std::vector<std::string>& all();

 private:
  void read(std::chrono::milliseconds wait);

  Descriptor reading_, writing_;
  std::string rest_;
  std::vector<std::string> lines_;
};

// The number at the end of a line.
int64_t number_in(const std::string& line);

// The processes say "front PID", "fronts before: N", "world NUMBER PID" and "rank NUMBER RANK PID". The front
// asks every world it gets to know whether it is there, again whenever it gets a byte through `ask`, and says
// "answer NUMBER PID", with the number of the launcher of that world; besides "down NUMBER: WHY", "loaded
// NUMBER" and "drain".
class TestServer {
 public:
  struct Plan {
    int64_t worlds = 1, ranks = 2;
    std::chrono::milliseconds drain = std::chrono::seconds(20);
    std::chrono::milliseconds most_silence = std::chrono::seconds(10);
    std::chrono::milliseconds most_silence_at_start = std::chrono::minutes(5);
    bool front_ignores_drain = false;
    // What a world does in place of its work, if that is anything.
    std::function<std::optional<launch::Failure>(int64_t number)> world_instead = {};
    std::function<std::optional<launch::Failure>()> front_instead = {};
  };

  explicit TestServer(Plan plan);
  ~TestServer();  // kills it
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  Lines& lines() { return lines_; }
  pid_t process() const { return process_; }
  // Has the front ask every world, or ask for the replacement of a world.
  void ask() const;
  void replace(int64_t number) const;
  // Has the front stand still, without being stopped, until it is asked something.
  void hang() const;
  // Waits for the end of the supervisor: its exit code, or -1 if it does not come within 20 s.
  int exit_code();
  // Whether no process is left that said its number, within 10 s.
  bool is_all_gone();

 private:
  launch::Failure run_front(Descriptor control, int64_t restarts);
  launch::Failure run_world(int64_t number, Descriptor control, Descriptor port);

  const Plan plan_;
  Lines lines_;
  Descriptor asking_, asked_;
  pid_t process_ = 0;
  std::optional<int> status_;
};

}  // namespace tessera::serve
