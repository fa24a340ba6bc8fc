#include "launch/aside.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <span>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"
#include "launch/signals.h"
#include "launch/worker.h"

namespace tessera::launch {
namespace {

// The first byte of the fork's report.
constexpr char kDone = 'd', kFailed = 'f';

std::string told_failure(const Failure& failure) {
  return fmt::format("{}{}\n{}", kFailed, failure.exit_code, failure.message);
}

std::string outcome_of(const std::function<std::string()>& run) noexcept {
  try {
    return kDone + run();
  } catch (const FailedAside& failed) {
    return told_failure(failed.failure);
  } catch (...) {
    return told_failure(current_failure());
  }
}

[[noreturn]] void run_fork(int pipe, pid_t parent, const std::function<std::string()>& run) {
  die_with_parent(parent);
  end_between_steps(/*quiet=*/true);  // nothing has asked the fork to end yet
  for (const int number : {SIGINT, SIGQUIT, SIGHUP}) ::signal(number, SIG_IGN);
  const std::string outcome = outcome_of(run);
  write_to_descriptor(pipe, std::as_bytes(std::span(outcome)));
  ::_exit(0);
}

// Reads until every writer has closed its end, and returns everything.
std::string read_all(int pipe) {
  std::string text;
  std::array<char, 1 << 16> block = {};
  for (;;) {
    const ssize_t count = ::read(pipe, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(block.data(), static_cast<size_t>(count));
  }
}

}  // namespace

std::string run_aside(const std::function<std::string()>& run) {
  std::array<int, 2> pipe = {};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    throw Error(ErrorKind::kPeer, "launcher", fmt::format("cannot make a pipe: {}", system_reason(errno)));
  const Descriptor reading(pipe[0]);
  Descriptor writing(pipe[1]);
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), process = ::fork();
  if (process < 0 && errno == ENOMEM) throw std::bad_alloc();
  if (process < 0)
    throw Error(ErrorKind::kMemory, "launcher",
                fmt::format("cannot start a process within the limit on processes (ulimit -u, or of a "
                            "container): {}",
                            system_reason(errno)));
  if (process == 0) run_fork(writing.number(), parent, run);
  writing = Descriptor();
  const std::string told = read_all(reading.number());
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (told.starts_with(kDone)) return told.substr(1);
  const size_t end = told.find('\n');
  if (told.starts_with(kFailed) && end != std::string::npos)
    throw FailedAside{{known_exit_code(std::atoi(told.c_str() + 1)), told.substr(end + 1)}};
  // The kernel ends processes with this signal when memory is short.
  const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  throw FailedAside{{is_killed ? static_cast<int>(ErrorKind::kMemory) : kInternalError,
                     fmt::format("[launcher] a process that plans the run ended early{}",
                                 is_killed ? ", by SIGKILL, perhaps for lack of memory" : "")}};
}

}  // namespace tessera::launch
