// Shows progress on stderr during a run: a bar on a terminal, one line per phase otherwise.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "engine/observer.h"
#include "engine/result.h"

namespace tessera::job {

class Progress {
 public:
  // Takes over the log sink, so that warnings and the bar do not mix, and restores it in the destructor.
  // `quiet` shows only warnings.
  // Names of fields are spelled as the front end spells them.
  Progress(bool quiet, FieldSpelling spelling);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Returns the observer for the engine. This object must outlive it.
  engine::Observer observer();

  void line(const std::string& text);            // prints a separate line
  void summary(const engine::Seconds& seconds);  // prints the last line

  const std::vector<std::string>& warnings() const { return warnings_; }  // so far

 private:
  void started(engine::Phase phase);
  void finished(engine::Phase phase, double seconds);
  void progressed(engine::Phase phase, int64_t done, int64_t total);
  void draw(const std::string& text);
  void erase();

  // A phase, which a run may enter many times.
  struct Part {
    double seconds = 0;  // of the previous times
    int64_t done = 0, total = 0;
  };

  bool quiet_;
  FieldSpelling spelling_;
  bool terminal_;
  bool drawn_ = false;  // the terminal's last line is unfinished
  std::map<engine::Phase, Part> parts_;
  std::chrono::steady_clock::time_point stage_start_;
  std::chrono::steady_clock::time_point last_line_;  // used if there is no terminal
  std::vector<std::string> warnings_;
  LogSink previous_sink_;
};

}  // namespace tessera::job
