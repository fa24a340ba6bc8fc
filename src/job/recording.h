// Records a real run in the form of `tessera trace`, with the time of each event.
#pragma once

#include <optional>

#include "job/job.h"
#include "plan/recorder.h"
#include "plan/trace.h"

namespace tessera::job {

// Throws Error(kUsage) for what a trace does not show: parts of a long video, and references. The request is
// asked before it is resolved, which may refuse it for a reason that no longer counts without them.
void require_one_part(const VideoRequest& request);
void require_one_part(const engine::Settings& settings);  // what prompts have
// And for what a run cannot record.
void require_recordable(const Job& job);

// Records this rank from its construction on. Both arguments must outlive it.
class Recording {
 public:
  Recording(const Job& job, comm::World& world);
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Has the recording follow the phases and steps of a run.
  void follow(engine::Observer& observer) { recorder_->follow(observer); }
  // Ends it. All ranks must call this; rank 0 writes the file.
  void write(const comm::Group& world);

 private:
  const Job& job_;
  plan::RankTrace trace_;
  std::optional<plan::Recorder> recorder_;
};

}  // namespace tessera::job
