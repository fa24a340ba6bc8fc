// Turns a request into what a job needs, or refuses it, before any work is done for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "job/job.h"
#include "serve/job_service.h"

namespace tessera::serve {

// Bounds of a request, in addition to what the model itself refuses.
struct RequestLimits {
  int64_t pixels = int64_t{2048} * 2048;  // of a picture or a frame
  int64_t frames = 1024;                  // of a video
  int64_t steps = 250;
  int64_t pictures = 16;          // or videos
  int64_t prompt_bytes = 32'000;  // of each text
};

struct Admitted {
  std::shared_ptr<const engine::Settings> settings = {};
  parallel::Layout layout = {};
  std::vector<std::string> warnings = {};  // for the client
  std::string suffix = {};                 // of the results
  std::string batch_key = {};  // a hash of engine::batch_key(), because thousands of jobs may be waiting,
                               // each with one
  double work = 1;             // of a step (Estimates)
  bool may_be_saved = true;
};

// `base` has the model and how its ranks compute it. The dtype and the device in its arguments apply to every
// request.
std::variant<Admitted, JobRefusal> admit(const JobRequest& request, const job::Job& base,
                                         const RequestLimits& limits);

// Rewrites a message for the client: `image` and `reference` replace the files that hold what the client has
// sent, and the field that names them; files of the model lose their folder.
std::string without_paths(std::string message, const engine::Request& request, const engine::Model& model);

// The state of a job at its beginning, queued, except for its id and the time.
JobView view_of(const JobRequest& request, const Admitted& admitted);

}  // namespace tessera::serve
