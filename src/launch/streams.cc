#include "launch/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/error.h"

namespace tessera::launch {

namespace {

bool is_output_missing = false;

}  // namespace

bool was_output_missing() {
  return is_output_missing;
}

void open_missing_streams() {
  is_output_missing = ::fcntl(STDOUT_FILENO, F_GETFD) < 0;
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Opening a file takes the lowest free number, which is that of `stream`.
    if (::fcntl(stream, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) return;
  }
}

void say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

SayLater::SayLater(std::string text, std::chrono::milliseconds delay)
    : thread_([this, said = std::move(text), delay] {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, delay, [this] { return is_over_; })) say(said);
      }) {}

SayLater::~SayLater() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  usage_error("standard output", "cannot write: {}", std::generic_category().message(errno));
}

}  // namespace tessera::launch
