// What every API of a server does with jobs: accepts, describes, follows and ends them. APIs translate their
// requests into these calls, and know nothing about the queue, the disk or the worlds.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "engine/result.h"
#include "serve/job.h"
#include "serve/job_id.h"
#include "serve/journal.h"
#include "serve/scheduler.h"

namespace tessera::serve {

struct JobRequest {
  std::string owner;  // HttpRequest::owner
  std::string api;    // "jobs", "images", "videos" or "sdapi"
  // As the client gave it; the service makes every choice, and draws a missing seed. It names no files,
  // because clients must not reach those of the server.
  engine::Request request = {};
  // Files that the client has sent, as bytes, in place of Request::images and VideoRequest::reference_paths.
  std::vector<std::string> images = {}, references = {};
  // The suffix of the result files: ".png" (by default for pictures), ".jpg", ".webp", ".mp4" (by default for
  // videos), ".webm" or ".gif".
  std::string suffix = {};
  std::string echo = {};                // JSON of the API's own, kept with the job
  std::optional<Seconds> timeout = {};  // from now on; after it, the job expires
  bool is_awaited = false;  // the client waits on its connection: the job ends 5 s after its last follower
                            // has gone
  // If false, nothing about the job is written to disk, and it can be found only until it has ended: for a
  // client that waits and gets all results with JobUpdate. If true, clients learn that a job is accepted, and
  // that it has succeeded, only when that is on disk.
  bool is_stored = true;
  // These prevent that a request that is sent again is served twice; read_resend() fills them in.
  std::optional<std::string> idempotency_key = {};  // each owner has its own
  std::string body_hash = {};                       // of the path and the body
  // The client says that it has sent this before, without a key: it gets its newest job with this hash.
  bool is_resend = false;
};

// Why something was refused, or what ended a job.
struct JobError {
  // "invalid_value", "queue_full", "draining", "idempotency_conflict"; "failed", "crashed", "cancelled",
  // "expired"; "out_of_memory" for both.
  std::string code;
  std::string message;  // one line, with the plain names of fields
  int status = 500;     // of HTTP
};

// The state of a job.
struct JobView {
  std::string id;
  JobRequest request;  // with every choice made, and without the bytes of files
  JobState state = JobState::kQueued;
  int64_t step = 0, steps = 0;                // of denoising
  int64_t pictures = 0;                       // images or videos that it makes
  int64_t width = 0, height = 0, frames = 1;  // of each picture or video
  int attempts = 0;                           // the number of worlds lost while running it
  std::optional<Outlook> outlook = {};        // while it is queued
  WallTime accepted = {};
  std::optional<WallTime> started = {}, ended = {}, expires = {};
  std::optional<JobError> error = {};      // of a job that has failed, was cancelled or has expired
  std::vector<std::string> warnings = {};  // about what has no effect in a request, and the like
  // If it has succeeded. They have no path if they are not stored.
  std::vector<StoredResult> results = {};
  std::vector<uint64_t> seeds = {};  // for each result; the pictures of one request share its seed
  // The times of its run, which other jobs may have shared; `write` is the time in which its files were made.
  // `total` includes both.
  std::optional<engine::Seconds> seconds = {};
  bool has_preview = false;  // whether JobService::preview() returns one
};

// Why a request did not become a job.
struct JobRefusal {
  JobError error;  // the message may contain marks for fields (core/error.h), which each API spells in its
                   // way
  std::optional<Seconds> retry_after = {};  // nothing if sending the same request again is no use
  std::string parameter = {};               // the name of the wrong field, as in request_fields()
};

struct JobUpdate {
  enum class Kind {
    kState,    // its state, or its place in the queue, has changed
    kStep,     // JobView::step
    kPreview,  // `bytes`: a JPEG of picture `index`, or of one of its frames
    kResult    // picture `index` is done; `bytes` is its file of type `content_type`
  };
  Kind kind = Kind::kState;
  uint64_t number = 0;  // ascends among the updates of a job, even across restarts
  const JobView& job;
  int64_t index = 0;
  std::shared_ptr<const std::string> bytes = {};
  std::string content_type = {};
};

// Returned by follow(). While it lives, its callback is called, and an awaited job goes on.
class Follower {
 public:
  virtual ~Follower() = default;
};

// All functions must be called, and all callbacks come, on the server's thread. A callback may come before
// the function has returned. An owner can see only its own jobs: those of others do not exist for it.
class JobService {
 public:
  virtual ~JobService() = default;

  using Submitted = std::function<void(std::variant<JobView, JobRefusal>, bool is_attached)>;
  using Found = std::function<void(std::optional<JobView>)>;
  // `is_attached` means that the same client has sent this job before.
  virtual void submit(JobRequest request, Submitted done) = 0;

  virtual void find(const std::string& owner, const std::string& id, Found done) = 0;
  virtual void list(const std::string& owner, const JobFilter& filter,
                    std::function<void(std::vector<JobView>)> done) = 0;
  // Ends a job between two steps, and calls back with its state at that time, ended or not; has no effect on
  // a job that has ended.
  virtual void cancel(const std::string& owner, const std::string& id, Found done) = 0;
  // Forgets a job and its results; a job that has not ended is cancelled first. Calls back with whether it
  // existed.
  virtual void remove(const std::string& owner, const std::string& id, std::function<void(bool)> done) = 0;

  using Told = std::function<void(const JobUpdate&)>;
  // Before it returns, calls `told` with the state and the finished results; then with every change until the
  // follower is destroyed. The last call has the final state of the job. A preview comes every
  // `preview_every` steps; 0: never. For a job that does not exist or has ended, returns nullptr without a
  // call; find() tells which.
  virtual std::shared_ptr<Follower> follow(const std::string& owner, const std::string& id,
                                           int64_t preview_every, Told told) = 0;
  // The newest preview, a JPEG; nullptr if there is none. Asking makes the server produce previews for the
  // next 10 s.
  virtual std::shared_ptr<const std::string> preview(const std::string& owner, const std::string& id) = 0;

  // This owner's jobs that have not ended, in the order in which they were accepted.
  virtual std::vector<JobView> unfinished(const std::string& owner) = 0;

  virtual const engine::Model& model() const = 0;
  virtual std::string model_name() const = 0;  // the name of the model's folder, without its path
  virtual WallTime started() const = 0;        // when this server began
};

// A short text, the same for the same texts. It is not secret, and other texts with the same hash can be
// constructed.
std::string hash_of(std::initializer_list<std::string_view> texts);

struct HttpRequest;
// Fills in the values of the headers Idempotency-Key and x-stainless-retry-count. Every API calls it.
void read_resend(const HttpRequest& request, JobRequest& job);

}  // namespace tessera::serve
