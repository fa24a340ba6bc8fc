// Jobs as the journal keeps them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/job_service.h"
#include "serve/journal_thread.h"

namespace tessera::serve {

// Submission::request of a job: its request with every choice made, and what is told of it.
std::string write_stored_job(const JobView& view);
// JobView without what the journal has in columns of its own. Throws Error(kInput) for another text.
JobView read_stored_job(const std::string& text);
// A job that has ended, or that a process before has left.
JobView view_of(const JournalJob& job, const std::vector<StoredResult>& results);

std::string write_job_error(const JobError& error);
// JobView::seconds; empty if there are none.
std::string write_stored_seconds(const JobView& view);

// A run that was saved, as it stands on the disk: who takes part, then the bytes that a world takes.
struct SavedRunFile {
  struct Slot {
    std::string id;  // of a job
    int64_t pictures = 1;
  };
  std::vector<Slot> slots = {};  // in the order of the run
  std::vector<std::string> requests = {};
  std::string saved = {};  // WorldEvent::saved
};
std::string write_saved_head(const std::vector<SavedRunFile::Slot>& slots,
                             const std::vector<std::string>& requests);
// Throws Error(kInput) for what is none.
SavedRunFile read_saved_file(const std::filesystem::path& path);

}  // namespace tessera::serve
