// How a run tells its caller where it stands. The library never prints.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "core/image.h"

namespace tessera::engine {

enum class Phase { kLoadTextEncoder, kEncode, kLoadDenoiser, kDenoise, kLoadDecoder, kDecode };

const char* phase_name(Phase phase);

// Pictures on their way, as diffusers' callback_on_step_end has them.
struct Preview {
  int64_t step = 0;     // after which, from 0
  double timestep = 0;  // that the model was asked at it
  at::Tensor latents;  // [N, C, (T,) h, w], fp32, on the CPU, of all pictures of the batch; not to be changed
  std::vector<Image> images;  // N, decoded, of the size that is painted; where they are asked for
};

// Every member may be empty. All are called from the thread that runs the request.
struct Observer {
  std::function<void(Phase)> started;
  std::function<void(Phase, double seconds)> finished;
  // Steps of kDenoise, pictures of kDecode.
  std::function<void(Phase, int64_t done, int64_t total)> progressed;
  // This rank took patches [first, first + count) through its blocks at a step: for timelines.
  std::function<void(int64_t step, int64_t first, int64_t count, std::chrono::steady_clock::time_point begin,
                     std::chrono::steady_clock::time_point end)>
      computed;
  // Called on rank 0 of the world after every `preview_every` steps (0: never); what is set on other ranks
  // does not count. Ranks that hold parts of the pictures send them for each preview, and a pipeline runs
  // empty.
  std::function<void(const Preview&)> previewed;
  int64_t preview_every = 0;
  bool preview_images =
      false;  // costs a decoding of all pictures, and the decoder beside the denoiser in memory
  // Asked before every phase, step and picture and after every phase; true ends the run with Cancelled. It
  // may read what another thread sets (an atomic). Of several ranks, rank 0 alone is asked, for all.
  std::function<bool()> cancelled;
};

class Cancelled : public std::exception {
 public:
  const char* what() const noexcept override { return "cancelled"; }
};

// Whether the caller wants the run to end; throws Cancelled when so.
bool is_cancelled(const Observer& observer);
void check_cancelled(const Observer& observer);

}  // namespace tessera::engine
