#include "launch/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <functional>

#include "core/file.h"
#include "tests/support/folder_fixture.h"

namespace tessera::launch {
namespace {

class SignalsTest : public FolderFixture {
 protected:
  // Returns how a process ends that writes a file and then gets the signal. `before` is what its caller does.
  int end_of_writer(int number, const std::function<void()>& before = [] {}) {
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

bool has_handler(int number) {
  struct sigaction action = {};
  ::sigaction(number, nullptr, &action);
  return action.sa_handler != SIG_DFL;
}

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

// A library that uses memory without looking whether it got any.
void use_refused_memory() {
  install_signal_handlers();
  const volatile std::byte* const refused = nullptr;
  [[maybe_unused]] const std::byte used = *refused;
}

TEST(SignalsDeathTest, MemoryThatWasRefusedEndsItWithOneLine) {
  if (has_handler(SIGSEGV)) GTEST_SKIP() << "a sanitizer looks at faults";
  const auto end = [] {
    const rlimit none = {};
    if (::setrlimit(RLIMIT_DATA, &none) == 0) use_refused_memory();
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(5), "^tessera: \\[memory\\] not enough memory[^\n]*\n$");
}

TEST(SignalsDeathTest, OtherFaultsAreWhatTheyAlwaysWere) {
  if (has_handler(SIGSEGV)) GTEST_SKIP() << "a sanitizer looks at faults";
  EXPECT_EXIT(use_refused_memory(), testing::KilledBySignal(SIGSEGV), "^$");
}

}  // namespace
}  // namespace tessera::launch
