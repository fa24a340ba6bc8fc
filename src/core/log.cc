#include "core/log.h"

namespace tessera {
namespace {

LogSink& current_sink() {
  static LogSink sink;
  return sink;
}

}  // namespace

LogSink set_log_sink(LogSink sink) {
  return std::exchange(current_sink(), std::move(sink));
}

void log_message(LogLevel level, const std::string& message) {
  if (const LogSink& sink = current_sink()) sink(level, message);
}

}  // namespace tessera
