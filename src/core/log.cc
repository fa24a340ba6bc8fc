#include "core/log.h"

namespace tessera {
namespace {

LogSink& current_sink() {
  static LogSink sink;
  return sink;
}

thread_local int silences = 0;

}  // namespace

LogSink set_log_sink(LogSink sink) {
  return std::exchange(current_sink(), std::move(sink));
}

SuppressLog::SuppressLog() {
  ++silences;
}

SuppressLog::~SuppressLog() {
  --silences;
}

void log_message(LogLevel level, const std::string& message) {
  if (silences > 0) return;
  if (const LogSink& sink = current_sink()) sink(level, message);
}

}  // namespace tessera
