// Standard output, which must arrive, and standard error, which may be lost.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace tessera::launch {

// Opens /dev/null for standard streams that the caller has closed. Otherwise a file that is opened later
// would get their number, and messages would end up in it.
void open_missing_streams();
// Whether standard output was closed.
bool was_output_missing();

// Writes to standard error and ignores failures: a full or closed stream must not end a run.
void say(const std::string& text);

// Prints a text unless it is destroyed within the delay.
class SayLater {
 public:
  SayLater(std::string text, std::chrono::milliseconds delay);
  ~SayLater();
  SayLater(const SayLater&) = delete;
  SayLater& operator=(const SayLater&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

// Flushes standard output. Throws Error(kUsage) if not all of it could be written.
void flush_output();

}  // namespace tessera::launch
