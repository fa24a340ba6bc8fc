// The options of a server.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "engine/request.h"
#include "job/arguments.h"
#include "parallel/options.h"

namespace tessera::serve {

struct ServeOptions {
  // The model, and how the ranks of each world compute it. This dtype and this device apply to every request.
  std::optional<std::string> model, config, variant;  // see engine::find_model_files()
  engine::Request defaults;                           // only its dtype and device
  parallel::ParallelOptions parallel;
  // Only its parallel, machine and max_staleness are used: a plan chooses the layout of each world before it
  // starts.
  job::RunOptions plan;
  job::MessageOptions messages;
  int64_t worlds = 1;
  std::optional<int> threads;          // of each rank
  std::optional<int64_t> max_weights;  // bytes of weights that a rank keeps in memory; if absent, all

  // Who can reach it: serve/access.h.
  std::vector<std::string> listen = {"127.0.0.1:8188"};  // listen_on()
  std::optional<std::string> api_keys;                   // a file
  std::vector<std::string> allow_origin, allow_host;
  bool listen_without_keys = false;  // even beyond this host

  std::string folder;  // of the journal and of results; only one server at a time can use it

  // Limits beyond which requests are refused.
  int64_t max_queue = 1000;  // jobs
  int64_t max_body = 32 << 20;
  int64_t max_pixels = int64_t{2048} * 2048;  // of a picture, or of a video's frame
  int64_t max_steps = 250;
  int64_t max_prompts = 16;  // pictures or videos of a request

  double results_ttl = 86400;                     // seconds
  int64_t max_results_bytes = int64_t{10} << 30;  // beyond this, the oldest are removed
  double drain = 30;                              // seconds
};

// All options except `defaults`, `parallel`, `plan` and `messages`, which have tables of their own.
const Fields<ServeOptions>& serve_fields();

}  // namespace tessera::serve
