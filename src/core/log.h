// The library's messages while it works. The library never prints: messages go to a sink set by the program
// (the command line writes them to stderr), and are dropped if there is none.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

namespace tessera {

enum class LogLevel { kInfo, kWarning };

using LogSink = std::function<void(LogLevel, const std::string&)>;

// Replaces the sink and returns the previous one. Must not be called while other threads log.
LogSink set_log_sink(LogSink sink);

// Sets the sink, and restores the previous one on destruction.
class ScopedLogSink {
 public:
  explicit ScopedLogSink(LogSink sink) : before_(set_log_sink(std::move(sink))) {}
  ~ScopedLogSink() { set_log_sink(std::move(before_)); }
  ScopedLogSink(const ScopedLogSink&) = delete;
  ScopedLogSink& operator=(const ScopedLogSink&) = delete;

 private:
  LogSink before_;
};

// While an object lives, nothing that this thread logs reaches the sink.
class SuppressLog {
 public:
  SuppressLog();
  ~SuppressLog();
  SuppressLog(const SuppressLog&) = delete;
  SuppressLog& operator=(const SuppressLog&) = delete;
};

void log_message(LogLevel level, const std::string& message);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tessera
