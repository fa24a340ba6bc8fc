// What a server has accepted and what came of it, on the disk.
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
  std::string owner;    // a hash of the key with which it came, never the key
  std::string family;   // of the API by which it came
  std::string request;  // JSON
  WallTime accepted{};
  std::optional<WallTime> deadline{};
  // What the client sent so that a request that is sent again is not served twice; each owner has its own.
  std::optional<std::string> idempotency_key{};
  std::string body_hash{};  // of the body of the request as it came
};

struct Acceptance {
  enum class Kind {
    kAccepted,
    kAttached,  // the owner has sent the same body with this key before
    kRefused    // the owner has sent another body with this key before
  };
  Kind kind;
  std::string id;  // of the job that is accepted, or of the one before
};

struct JournalJob {
  Submission submission;
  JobState state = JobState::kQueued;
  int attempts = 0;  // lost worlds, as the scheduler counts them
  std::optional<WallTime> started{}, ended{};
  std::string error{};    // of a job that has failed, as record() got it
  std::string seconds{};  // of one that has succeeded, as succeed() got them
  // Where its run was saved: a file that other jobs have in common with it if they shared the run, and the
  // step that comes next. Empty if it was not saved.
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
  std::string after = {};             // the id behind which the list begins; empty: at its beginning
  int64_t limit = 20;
  bool newest_first = false;  // else in the order in which they were accepted

  bool includes(JobState state) const {
    return states.empty() || std::find(states.begin(), states.end(), state) != states.end();
  }
};

// A folder that one server at a time uses: a database (journal.sqlite) and files for what is large. What a
// function has done is on the disk when it returns, and is there whole or not at all whenever this process or
// the machine ends. Files are there before the rows that name them, and go after them; those without rows, as
// a process leaves that ends between the two, are removed by the next one.
//
// Errors are those of Database and AtomicFile. After one nothing is changed, and the journal can go on, as
// when a full disk has room again. One thread at a time may use it.
class Journal {
 public:
  // Opens or creates the folder. Besides errors of the database, throws Error(kInput) for a journal of a
  // newer version and for a database that is no journal. What has expired at `now` is removed.
  Journal(const JournalOptions& options, WallTime now);

  // Replaces Submission::request of a job that has not ended.
  void rewrite(const std::string& id, const std::string& request);

  // Accepts jobs, in this order. To accept many at once takes hardly longer than to accept one, since both
  // wait once for the disk. A client may be told that its job is accepted when this has returned, not before.
  // If it throws, none is accepted.
  std::vector<Acceptance> accept(std::span<const Submission> submissions);

  struct Change {
    std::string id;
    JobState state = JobState::kQueued;
    int attempts = 0;
    std::string error{};
    std::optional<WallTime> started{};
  };
  // Changes jobs that have not ended; for others it has no effect. What was saved of those that end is
  // removed.
  void record(std::span<const Change> changes, WallTime now);
  // A job has succeeded with these results. Where they exceed the cap with those that are there, the oldest
  // ones are removed first. Throws Error(kUsage) if they exceed it alone. `seconds` is a text about how long
  // it took.
  void succeed(const std::string& id, std::span<const NewResult> results, WallTime now,
               std::optional<WallTime> started = {}, std::string_view seconds = {});
  // The run that these jobs share stands at a step; `run` is whatever the caller can take it up from. It
  // takes the place of what was saved of them before.
  void save_step(std::span<const std::string> ids, int64_t step, std::span<const std::byte> run);

  // Jobs that have not ended, in the order in which they were accepted. Those that were running when the
  // process before ended are still called running.
  std::vector<JournalJob> unfinished();
  std::optional<JournalJob> find(std::string_view id);
  // Of those that have ended.
  std::vector<JournalJob> list(const std::string& owner, const JobFilter& filter);
  // Of a job, in their order; fewer than there were, or none, if they have expired.
  std::vector<StoredResult> results(std::string_view id);

  // Forgets a job, in whichever state, and its results.
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
