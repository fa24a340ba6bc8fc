// How a run tells its caller where it stands. The library never prints.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>

namespace tessera::engine {

enum class Stage { kLoadTextEncoder, kEncode, kLoadDenoiser, kDenoise, kLoadDecoder, kDecode };

const char* stage_name(Stage stage);

// Every member may be empty. All are called from the thread that runs the request.
struct Observer {
  std::function<void(Stage)> started;
  std::function<void(Stage, double seconds)> finished;
  // Steps of kDenoise, pictures of kDecode.
  std::function<void(Stage, int64_t done, int64_t total)> progressed;
  // This rank took patches [first, first + count) through its blocks at a step: for timelines.
  std::function<void(int64_t step, int64_t first, int64_t count, std::chrono::steady_clock::time_point begin,
                     std::chrono::steady_clock::time_point end)>
      computed;
  // Asked before every stage, step and picture and after every stage; true ends the run with Cancelled. It
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
