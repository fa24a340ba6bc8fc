#include "launch/signals.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/temporary_file.h"
#include "launch/status.h"
#include "weights/mapped_file.h"

namespace tessera::launch {
namespace {

std::atomic<bool> asked_to_end{false}, is_quiet{false};
std::atomic<const char*> last_unit{"this step"};

void write_to_stderr(std::string_view text) {
  // A signal handler cannot do anything about a failed write.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// The supervisor reads this status and prints why the rank failed.
std::atomic<RankStatus*> watched_status{nullptr};

[[noreturn]] void end_by_fault(ErrorKind kind, const char* message) {
  static std::atomic<bool> is_reported{false};
  while (is_reported.exchange(true)) ::pause();  // another thread was first
  const int exit_code = static_cast<int>(kind);
  if (RankStatus* const status = watched_status) {
    status->failed(exit_code, message, std::nullopt);
  } else {
    for (const std::string_view text : {"tessera: ", message, "\n"}) write_to_stderr(text);
  }
  remove_unfinished_files();
  ::_exit(exit_code);
}

// Returns whether the system refuses even a little more memory, because a limit (ulimit -v, -d) has been
// reached.
bool is_memory_exhausted() {
  constexpr size_t kLittle = size_t{16} << 20;  // glibc asks for 1 MiB even if a program needs only a few
                                                // bytes
  void* const memory = ::mmap(nullptr, kLittle, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return true;
  ::munmap(memory, kLittle);
  return false;
}

// Either a page of a mapped file is gone, or a library uses memory that it did not get (oneDNN does not
// check). Any other fault ends the program as it would without this handler.
void on_fault(int number, siginfo_t* info, void*) {
  if (info->si_code > 0) {
    const char* const changed = number == SIGBUS ? weights::changed_file_at(info->si_addr) : nullptr;
    if (changed) end_by_fault(ErrorKind::kInput, changed);
    if (number == SIGSEGV && is_memory_exhausted())
      end_by_fault(ErrorKind::kMemory, "[memory] not enough memory; a limit of this process is reached");
  }
  ::signal(number, SIG_DFL);
  ::raise(number);
}

// Ends the program as it would end without a handler, as a caller that reads its output expects.
void on_closed_pipe(int number) {
  remove_unfinished_files();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void on_signal(int number);

// Returns whether the signal is neither ignored nor used by a library in this process, such as a profiler.
bool is_free(int number) {
  struct sigaction action = {};
  ::sigaction(number, nullptr, &action);
  return action.sa_handler == SIG_DFL || action.sa_handler == on_signal;
}

void on_signal(int number) {
  if (number == SIGINT && !asked_to_end.exchange(true)) {
    say_end();
    return;
  }
  remove_unfinished_files();
  if (!watched_status)
    write_to_stderr(has_finished_file() ? "tessera: stopped at once; finished files stay\n"
                                        // otherwise the supervisor prints it
                                        : "tessera: stopped at once; nothing was written\n");
  ::_exit(128 + number);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  for (const int number : ending_signals()) ::sigaction(number, &action, nullptr);
  action.sa_handler = on_closed_pipe;
  if (is_free(SIGPIPE)) ::sigaction(SIGPIPE, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
  if (is_free(SIGSEGV)) ::sigaction(SIGSEGV, &action, nullptr);
}

std::vector<int> ending_signals() {
  std::vector<int> numbers = {SIGTERM};
  std::vector<int> others = {SIGHUP,  SIGQUIT, SIGUSR1,   SIGUSR2, SIGALRM, SIGVTALRM,
                             SIGPROF, SIGXCPU, SIGSTKFLT, SIGPOLL, SIGPWR};
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) others.push_back(number);
  std::copy_if(others.begin(), others.end(), std::back_inserter(numbers), is_free);
  return numbers;
}

void finish_before_end(const char* unit) {
  last_unit = unit;
}

void say_end() {
  if (is_quiet) return;
  for (const std::string_view text :
       {"\ntessera: stopping after ", last_unit.load(), "; Ctrl-C again stops at once\n"})
    write_to_stderr(text);
}

bool interrupted() {
  return asked_to_end;
}

void leave_signals_to_parent(RankStatus& status) {
  watched_status = &status;  // before a pending signal arrives
  for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGPIPE}) ::signal(number, SIG_IGN);
  // The launcher blocks signals to wait for them, and its children inherit the mask.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
}

void end_at_first_interrupt() {
  asked_to_end = true;  // as if this were the second SIGINT
}

void end_between_steps(bool quiet) {
  is_quiet = quiet;
  asked_to_end = false;
}

}  // namespace tessera::launch
