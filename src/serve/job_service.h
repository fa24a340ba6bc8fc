// What every API of a server does with jobs: accepts them, tells of them, follows and ends them. APIs turn
// requests of their own form into these calls, and know neither queue, nor disk, nor worlds.
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
  // As the client gave it; the service makes every choice, and draws a missing seed. It names no files: those
  // of the server are no client's business.
  engine::Request request = {};
  // Files that the client has sent, as bytes, in place of Request::images and VideoRequest::reference_paths.
  std::vector<std::string> images = {}, references = {};
  // Of the files of results: ".png" (by default for pictures), ".jpg", ".webp", ".mp4" (by default for
  // videos), ".webm" or ".gif".
  std::string suffix = {};
  std::string echo = {};                // JSON of the API's own, kept with the job
  std::optional<Seconds> timeout = {};  // from now on; then the job expires
  bool is_awaited = false;  // the client waits on its connection: the job ends 5 s after its last follower
  // Without it nothing of the job goes to the disk, and it can be found only until it has ended: for a client
  // that waits and gets all results with JobUpdate. Others are told that a job is accepted, and that it has
  // succeeded, when the disk has it.
  bool is_stored = true;
  // So that a request that is sent again is not served twice; read_resend() fills them.
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
  std::string message;  // one line, in which fields have their plain names
  int status = 500;     // of HTTP
};

// How a job stands.
struct JobView {
  std::string id;
  JobRequest request;  // with every choice made, and without the bytes of files
  JobState state = JobState::kQueued;
  int64_t step = 0, steps = 0;                // of denoising
  int64_t pictures = 0;                       // images or videos that it makes
  int64_t width = 0, height = 0, frames = 1;  // of each of them
  int attempts = 0;                           // worlds that were lost with it
  std::optional<Outlook> outlook = {};        // while it is queued
  WallTime accepted = {};
  std::optional<WallTime> started = {}, ended = {}, expires = {};
  std::optional<JobError> error = {};      // of a job that has failed, was cancelled or has expired
  std::vector<std::string> warnings = {};  // of what a request has without effect, and the like
  // When it has succeeded. They have no path if they are not stored.
  std::vector<StoredResult> results = {};
  std::vector<uint64_t> seeds = {};  // of each result; the pictures of one request share its seed
  // Of its run, which other jobs may have shared; `write` is the making of its files. `total` is both.
  std::optional<engine::Seconds> seconds = {};
  bool has_preview = false;  // JobService::preview() has one
};

// Why a request did not become a job.
struct JobRefusal {
  JobError error;  // whose message may name fields by marks (core/error.h), as each API has them
  std::optional<Seconds> retry_after = {};  // nothing where it is no use to send it again as it is
  std::string parameter = {};               // the name of the field at fault, as request_fields() has it
};

struct JobUpdate {
  enum class Kind {
    kState,    // it is in another state, or its place in the queue has changed
    kStep,     // JobView::step
    kPreview,  // `bytes`: a JPEG of picture `index`, or of a frame of it
    kResult    // picture `index` is done; `bytes` is its file, `content_type` says of which kind
  };
  Kind kind = Kind::kState;
  uint64_t number = 0;  // ascends among the updates of a job, also over restarts
  const JobView& job;
  int64_t index = 0;
  std::shared_ptr<const std::string> bytes = {};
  std::string content_type = {};
};

// What follow() returns. While it lives its calls come, and a job that is awaited goes on.
class Follower {
 public:
  virtual ~Follower() = default;
};

// All calls are made and all callbacks come on the server's thread. A callback may come before the function
// has returned. An owner knows of his own jobs alone: those of others are not there.
class JobService {
 public:
  virtual ~JobService() = default;

  using Submitted = std::function<void(std::variant<JobView, JobRefusal>, bool is_attached)>;
  using Found = std::function<void(std::optional<JobView>)>;
  // `is_attached` says that the job is one that the same client has sent before.
  virtual void submit(JobRequest request, Submitted done) = 0;

  virtual void find(const std::string& owner, const std::string& id, Found done) = 0;
  virtual void list(const std::string& owner, const JobFilter& filter,
                    std::function<void(std::vector<JobView>)> done) = 0;
  // Ends a job between two steps, and calls back with it as it stands then, ended or not; has no effect on
  // one that has ended.
  virtual void cancel(const std::string& owner, const std::string& id, Found done) = 0;
  // Forgets a job and its results; one that has not ended is cancelled before. Calls back with whether it was
  // there.
  virtual void remove(const std::string& owner, const std::string& id, std::function<void(bool)> done) = 0;

  using Told = std::function<void(const JobUpdate&)>;
  // Calls `told` before it returns with the state, and the results that are done, and then with every change
  // until the follower goes; the last one is the state in which the job has ended. `preview_every` steps a
  // preview comes; 0: never. Returns nullptr, without a call, for a job that is not there or has ended:
  // find() says which.
  virtual std::shared_ptr<Follower> follow(const std::string& owner, const std::string& id,
                                           int64_t preview_every, Told told) = 0;
  // The newest preview, a JPEG; nullptr if there is none. That somebody asks has previews made for the next
  // 10 s.
  virtual std::shared_ptr<const std::string> preview(const std::string& owner, const std::string& id) = 0;

  // Jobs of this owner that have not ended, in the order in which they were accepted.
  virtual std::vector<JobView> unfinished(const std::string& owner) = 0;

  virtual const engine::Model& model() const = 0;
  virtual std::string model_name() const = 0;  // of the model's folder, without its path
  virtual WallTime started() const = 0;        // when this server began
};

// A short text, the same for the same texts. It is no secret, and nobody is kept from finding another text
// with it.
std::string hash_of(std::initializer_list<std::string_view> texts);

struct HttpRequest;
// Fills in what the headers Idempotency-Key and x-stainless-retry-count say. Every API calls it.
void read_resend(const HttpRequest& request, JobRequest& job);

}  // namespace tessera::serve
