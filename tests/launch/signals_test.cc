#include "launch/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "core/file.h"
#include "tests/support/folder_fixture.h"

namespace tessera::launch {
namespace {

class SignalsTest : public FolderFixture {
 protected:
  // Returns how a process ends that writes a file and then gets the signal. `before` is what its caller does.
  int end_of_writer(
      int number, const std::function<void()>& before = [] {}) {
    const pid_t process = ::fork();
    if (process == 0) {
      ::signal(number, SIG_DFL);  // whatever the caller of the tests ignores
      before();
      install_signal_handlers();
      ::close(STDERR_FILENO);
      AtomicFile file(folder_ / "half");
      file.write("half");
      ::raise(number);
      file.commit();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(process, &status, 0), process);
    return status;
  }
};

TEST_F(SignalsTest, WhateverEndsTheProgramLeavesNoFile) {
  for (const int number : {SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU,
                           SIGSTKFLT, SIGPOLL, SIGPWR, SIGRTMIN, SIGRTMAX}) {
    const int status = end_of_writer(number);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + number) << number << ": " << status;
    EXPECT_TRUE(names().empty()) << number;
  }
}

TEST_F(SignalsTest, AClosedPipeEndsItAsUsual) {
  const int status = end_of_writer(SIGPIPE);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
  EXPECT_TRUE(names().empty());
}

TEST_F(SignalsTest, SignalsThatTheCallerIgnoresStayIgnored) {
  for (const int number : {SIGHUP, SIGUSR1, SIGPIPE})
    EXPECT_EQ(end_of_writer(number, [number] { ::signal(number, SIG_IGN); }), 0) << number;
  EXPECT_EQ(names(), std::vector<std::string>{"half"});
}

}  // namespace
}  // namespace tessera::launch
