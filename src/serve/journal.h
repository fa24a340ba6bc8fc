// A record on disk of what a server has accepted and what came of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/database.h"
#include "serve/job.h"
#include "serve/job_id.h"

namespace tessera::serve {

struct JournalOptions {
  std::filesystem::path folder;
  uint64_t max_result_bytes = uint64_t{8} << 30;                    // of all results together
  std::chrono::milliseconds time_to_live = std::chrono::hours(24);  // of results, and of jobs that have ended
};

// A job to accept.
struct Submission {
  std::string id;       // new_job_id()
  std::string owner;    // a hash of the key that came with it, never the key itself
  std::string family;   // of the API through which it came
  std::string request;  // JSON
  WallTime accepted{};
  std::optional<WallTime> deadline{};
  // Sent by the client so that a repeated request is not served twice; each owner has its own keys.
  std::optional<std::string> idempotency_key{};
  std::string body_hash{};  // of the body of the request as received
};

struct Acceptance {
  enum class Kind {
    kAccepted,
    kAttached,  // the owner has already sent the same body with this key
    kRefused    // the owner has already sent another body with this key
  };
  Kind kind;
  std::string id;  // of the accepted job, or of the earlier one
};

struct JournalJob {
  Submission submission;
  JobState state = JobState::kQueued;
  int attempts = 0;  // lost worlds, as the scheduler counts them
  std::optional<WallTime> started{}, ended{};
  std::string error{};    // of a failed job, as passed to record()
  std::string seconds{};  // of a job that has succeeded, as passed to succeed()
  // Where its run was saved: a file, which jobs that shared the run have in common, and the next step. Empty
  // if it was not saved.
  std::filesystem::path saved_file{};
  int64_t saved_step = 0;
};

struct StoredResult {
  std::filesystem::path path;
  std::string content_type;
  uint64_t bytes = 0;
  WallTime expires{};
};

// A result to store.
struct NewResult {
  std::string content_type;
  std::span<const std::byte> bytes;
};

// Which jobs of an owner to list.
struct JobFilter {
  std::optional<std::string> api = {};
  std::vector<JobState> states = {};  // none: all
  std::string after = {};             // the id after which the list begins; if empty, from the beginning
  int64_t limit = 20;
  bool newest_first = false;  // otherwise in the order in which they were accepted

  bool includes(JobState state) const {
    return states.empty() || std::find(states.begin(), states.end(), state) != states.end();
  }
};

// A folder for one server at a time: a database (journal.sqlite) and files for large contents. When a
// function returns, its changes are on disk; whenever this process or the machine ends, they are there
// entirely or not at all. Files are created before the rows that name them, and removed after them; files
// without rows, left by a process that ended in between, are removed by the next process.
//
// Errors are those of Database and AtomicFile. After an error nothing is changed, and the journal can go on,
// for example when a full disk has room again. Only one thread at a time may use it.
class Journal {
 public:
  // Opens or creates the folder. Besides errors of the database, throws Error(kInput) for a journal of a
  // newer version and for a database that is not a journal. Removes what has expired at `now`.
  Journal(const JournalOptions& options, WallTime now);

  // Replaces Submission::request of a job that has not ended.
  void rewrite(const std::string& id, const std::string& request);

  // Accepts jobs, in this order. Accepting many at once takes hardly longer than accepting one, because both
  // wait for the disk once. Clients may learn that their jobs are accepted only after this has returned. If
  // it throws, no job is accepted.
  std::vector<Acceptance> accept(std::span<const Submission> submissions);

  struct Change {
    std::string id;
    JobState state = JobState::kQueued;
    int attempts = 0;
    std::string error{};
    std::optional<WallTime> started{};
  };
  // Changes jobs that have not ended; has no effect on others. The saved runs of jobs that end are removed.
  void record(std::span<const Change> changes, WallTime now);
  // A job has succeeded with these results. If they and the existing results exceed the cap, the oldest ones
  // are removed first. Throws Error(kUsage) if they exceed it alone. `seconds` is a text about how long it
  // took.
  void succeed(const std::string& id, std::span<const NewResult> results, WallTime now,
               std::optional<WallTime> started = {}, std::string_view seconds = {});
  // The run that these jobs share has reached a step; `run` is whatever the caller needs to resume it. It
  // replaces what was saved of them before.
  void save_step(std::span<const std::string> ids, int64_t step, std::span<const std::byte> run);

  // Jobs that have not ended, in the order in which they were accepted. Those that were running when the
  // previous process ended are still marked as running.
  std::vector<JournalJob> unfinished();
  std::optional<JournalJob> find(std::string_view id);
  // Jobs that have ended.
  std::vector<JournalJob> list(const std::string& owner, const JobFilter& filter);
  // The results of a job, in their order; fewer than there were, or none, if some have expired.
  std::vector<StoredResult> results(std::string_view id);

  // Forgets a job, in whatever state, and its results.
  void remove(const std::string& id);
  // Removes results whose time has come, and jobs that ended that long ago.
  void remove_expired(WallTime now);
  uint64_t result_bytes() const { return result_bytes_; }

 private:
  void create_tables();
  void remove_strays();
  void make_room(uint64_t bytes);
  std::vector<std::string> saved_files(std::span<const std::string> ids);
  void remove_saved(const std::vector<std::string>& files);
  std::vector<JournalJob> read(Statement& statement);
  void remove_results(Statement& which);

  const JournalOptions options_;
  const std::filesystem::path results_folder_, saved_folder_;
  Database database_;
  uint64_t result_bytes_ = 0;
};

}  // namespace tessera::serve
