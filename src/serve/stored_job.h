// Jobs as the journal keeps them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/job_service.h"
#include "serve/journal_thread.h"

namespace tessera::serve {

// Submission::request of a job: its request with every choice made, and what clients see of it.
std::string write_stored_job(const JobView& view);
// Returns a JobView without the fields that have columns of their own in the journal. Throws Error(kInput)
// for any other text.
JobView read_stored_job(const std::string& text);
// A job that has ended, or that an earlier process has left.
JobView view_of(const JournalJob& job, const std::vector<StoredResult>& results);

std::string write_job_error(const JobError& error);
// JobView::seconds; empty if there are none.
std::string write_stored_seconds(const JobView& view);

// A saved run as it is on disk: its participants, followed by the bytes that a world takes.
struct SavedRunFile {
  struct Slot {
    std::string id;  // of a job
    int64_t pictures = 1;
  };
  std::vector<Slot> slots = {};  // in the order of the run
  std::vector<std::string> requests = {};
  std::string saved = {};       // WorldEvent::saved
  double seconds_per_work = 0;  // Estimates::step() of its batch key; 0 if it has not been measured
};
// All of it but `saved`.
std::string write_saved_head(const SavedRunFile& file);
// Throws Error(kInput) for any other file.
SavedRunFile read_saved_file(const std::filesystem::path& path);

}  // namespace tessera::serve
