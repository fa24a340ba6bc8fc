// Records a real run in the form of `tessera trace`, with the time of each event.
#pragma once

#include <optional>

#include "job/job.h"
#include "plan/recorder.h"
#include "plan/trace.h"

namespace tessera::job {

// Throws Error(kUsage) for what a trace cannot contain: parts of a long video, and references. The request is
// checked before it is resolved, because resolving may refuse it for a reason that would no longer apply
// without them.
void require_one_part(const VideoRequest& request);
void require_one_part(const engine::Settings& settings);  // for what the prompts contain
// The same for what a recording of a run cannot contain.
void require_recordable(const Job& job);

// Records this rank from construction on. Both arguments must outlive it.
class Recording {
 public:
  Recording(const Job& job, comm::World& world);
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Makes the recording follow the phases and steps of a run.
  void follow(engine::Observer& observer) { recorder_->follow(observer); }
  // Ends the recording. All ranks must call this; rank 0 writes the file.
  void write(const comm::Group& world);

 private:
  const Job& job_;
  plan::RankTrace trace_;
  std::optional<plan::Recorder> recorder_;
};

}  // namespace tessera::job
