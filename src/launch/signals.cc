#include "launch/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "core/file.h"

namespace tessera::launch {
namespace {

std::atomic<bool> asked_to_end{false};

void say(std::string_view text) {
  // A signal handler cannot do anything about a failed write.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void on_signal(int number) {
  if (number == SIGINT && !asked_to_end.exchange(true)) {
    say("\ntessera: stopping after this step; Ctrl-C again stops at once\n");
    return;
  }
  remove_unfinished_files();
  ::_exit(128 + number);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
  if (!ignores_hangup()) ::sigaction(SIGHUP, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);
}

bool ignores_hangup() {
  struct sigaction action = {};
  ::sigaction(SIGHUP, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

bool interrupted() {
  return asked_to_end;
}

void leave_interrupts_to_parent() {
  for (const int number : {SIGINT, SIGHUP, SIGPIPE}) ::signal(number, SIG_IGN);
  // The launcher blocks these to wait for them, and its children inherit the mask.
  sigset_t taken;
  ::sigemptyset(&taken);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&taken, number);
  ::pthread_sigmask(SIG_UNBLOCK, &taken, nullptr);
}

void end_at_first_interrupt() {
  asked_to_end = true;  // as if this were the second
}

}  // namespace tessera::launch
