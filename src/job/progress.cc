#include "job/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "launch/streams.h"

namespace tessera::job {
namespace {

using engine::Phase;

std::string duration(double seconds) {
  if (seconds < 100) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : 1);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02} h", whole / 3600, whole / 60 % 60, whole % 60);
}

// Returns whether standard error is a terminal whose last line can be rewritten.
bool can_redraw() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && (!kind || std::string_view(kind) != "dumb");
}

std::string bar(int64_t done, int64_t total) {
  constexpr int64_t kWidth = 24;
  const int64_t filled = done * kWidth / total;
  return fmt::format("[{}{}]", std::string(static_cast<size_t>(filled), '#'),
                     std::string(static_cast<size_t>(kWidth - filled), '.'));
}

}  // namespace

Progress::Progress(bool quiet, FieldSpelling spelling)
    : quiet_(quiet), spelling_(std::move(spelling)), terminal_(can_redraw()) {
  previous_sink_ = set_log_sink([this](LogLevel level, const std::string& message) {
    if (level == LogLevel::kWarning) {
      // Both halves of a part may give the same warning.
      if (std::find(warnings_.begin(), warnings_.end(), message) != warnings_.end()) return;
      warnings_.push_back(message);
      line("warning: " + message);
    } else if (!quiet_) {
      line(message);
    }
  });
}

Progress::~Progress() {
  erase();
  set_log_sink(std::move(previous_sink_));
}

engine::Observer Progress::observer() {
  engine::Observer observer;
  if (quiet_) return observer;
  observer.started = [this](Phase phase) { started(phase); };
  observer.finished = [this](Phase phase, double seconds) { finished(phase, seconds); };
  observer.progressed = [this](Phase phase, int64_t done, int64_t total) { progressed(phase, done, total); };
  return observer;
}

void Progress::line(const std::string& text) {
  erase();
  launch::say(spell(text, spelling_) + '\n');
}

void Progress::summary(const engine::Seconds& seconds) {
  if (quiet_) return;
  line(fmt::format("{} in all: load {}, encode {}, denoise {}, decode {}, write {}", duration(seconds.total),
                   duration(seconds.load), duration(seconds.encode), duration(seconds.denoise),
                   duration(seconds.decode), duration(seconds.write)));
}

void Progress::started(Phase phase) {
  stage_start_ = std::chrono::steady_clock::now();
  if (parts_[phase].done == 0) last_line_ = stage_start_;
  if (terminal_) draw(fmt::format("{} ...", engine::phase_name(phase)));
}

void Progress::finished(Phase phase, double seconds) {
  Part& part = parts_[phase];
  part.seconds += seconds;
  if (terminal_ || part.done < part.total) return;
  line(fmt::format("{:<18} {}", engine::phase_name(phase), duration(part.seconds)));
}

void Progress::progressed(Phase phase, int64_t done, int64_t total) {
  if (done == 0) return;  // how long a step takes is not known yet
  const auto now = std::chrono::steady_clock::now();
  Part& part = parts_[phase];
  part.done = done;
  part.total = total;
  const double passed = part.seconds + std::chrono::duration<double>(now - stage_start_).count();
  const double each = passed / static_cast<double>(done);
  if (!terminal_) {
    constexpr auto kOften = std::chrono::seconds(10);
    if (done == total || now - last_line_ < kOften) return;
    last_line_ = now;
    line(fmt::format("{:<18} {}/{}, {} left", engine::phase_name(phase), done, total,
                     duration(each * static_cast<double>(total - done))));
    return;
  }
  draw(fmt::format("{} {} {}/{}  {} each, {} left", engine::phase_name(phase), bar(done, total), done, total,
                   duration(each), duration(each * static_cast<double>(total - done))));
}

void Progress::draw(const std::string& text) {
  winsize size = {};
  const size_t columns =
      ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
  launch::say("\r\033[K" + text.substr(0, columns));  // a longer line would leave its beginning behind
  drawn_ = true;
}

void Progress::erase() {
  if (!std::exchange(drawn_, false)) return;
  launch::say("\r\033[K");
}

}  // namespace tessera::job
