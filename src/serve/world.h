// A world: ranks that keep a model loaded, and advance by a step at a time the runs that a front asks for.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "core/image.h"
#include "engine/engine.h"
#include "parallel/options.h"

namespace tessera::serve {

// What a front asks of a world between two steps.
struct WorldOrder {
  enum class Kind {
    kBegin,    // a run of `requests`, as a batch
    kResume,   // the same requests, from the state in `saved`
    kWatch,    // changes `preview_every` of a run; has no effect on one that has ended
    kSave,     // answered by kSaved, or not at all if the run has ended or cannot be saved
    kDrop,     // answered by kDropped, even for a run that has ended
    kDropAll,  // every run, answered by kReady; the first order of a new front, which does not know its
               // predecessor's runs
    kEnd       // the world, after dropping all runs
  };
  Kind kind = Kind::kEnd;
  int64_t run = 0;                    // a number that no other run has, including those of earlier fronts
  std::vector<std::string> requests;  // JSON, in the form of engine::request_fields(), with seeds
  std::string saved;                  // engine::write_saved_run()
  int64_t preview_every = 0;          // steps; 0: never, which costs nothing
};

// Consecutive frames of a video. A video is complete when it has `total` frames.
struct VideoFrames {
  int64_t first = 0, count = 0;  // the place of the first one in the video, and how many there are
  int64_t total = 0;             // of the video
  int64_t height = 0, width = 0;
  double fps = 0;
  std::string pixels = {};  // count x height x width x 3 bytes, RGB

  bool operator==(const VideoFrames&) const = default;
};

// What a world reports to its front, on rank 0.
struct WorldEvent {
  enum class Kind {
    kReady,    // a run can begin: the first event, and the answer to kDropAll; has `ranks` and
               // `weights_bytes`
    kAlive,    // every second while there are no runs; not about a run
    kBegun,    // the ranks have taken up the run
    kStep,     // `step` of `steps` are done
    kPreview,  // `image` of the picture `index` after `step` steps; of a video, a frame
    kPicture,  // `image`, the picture `index` of the batch, request after request
    kFrames,   // `frames` of the video `index`, which may have one frame; they come in order
    kSaved,    // where the run stands: `saved`
    kDropped,  // no rank works on the run any more
    kWarning,  // `message`: about something in the run, such as a prompt that is too long
    kEnded,    // every picture is there; `seconds` has the times of the run's parts
    kFailed    // the run has ended with `exit_code` and `message`
  };
  Kind kind = Kind::kAlive;
  int64_t run = 0;
  int64_t step = 0, steps = 0;
  int64_t index = 0;
  Image image = {};
  VideoFrames frames = {};
  std::string saved = {};
  engine::Seconds seconds = {};
  int exit_code = 0;
  std::string message = {};
  int64_t ranks = 0;
  uint64_t weights_bytes = 0;  // that rank 0 keeps in memory (engine::Engine::load())
};

// The connection between rank 0 of a world and its front. An exception thrown by it ends the world.
class WorldPort {
 public:
  virtual ~WorldPort() = default;
  // Returns the orders that have come; waits up to `wait` for one.
  virtual std::vector<WorldOrder> orders(std::chrono::milliseconds wait) = 0;
  virtual void tell(const WorldEvent& event) = 0;
  // Whether orders() is going to return one that drops the run, without one before it that saves it.
  virtual bool will_drop(int64_t /*run*/) { return false; }
  // The warnings on this rank since the last call.
  virtual std::vector<std::string> take_warnings() { return {}; }
};

// Loads the weights that a request like `typical` needs and that stay in memory, so that the first run does
// not wait for them. All ranks must call it before run_world(). Throws as Engine::run() does.
void load_world(engine::Engine& engine, const comm::World& world, const parallel::ParallelOptions& options,
                const engine::Request& typical);

// The shortest time between previews of a run, whatever its front asks for.
inline constexpr std::chrono::milliseconds kBetweenPreviews = std::chrono::milliseconds(250);

// Carries out orders until one ends the world. All ranks of `world`, which is that of `engine`, must call it;
// `port` is that of rank 0, and null on others. Between the steps of runs an order costs a message to each
// rank. A rank that is alone also looks between the blocks of a step whether its run is to be dropped; with
// several ranks every step would pay for messages there. While there are no runs, rank 0 sends a message
// every `idle` or every second, so that the others, which wait for it without computing, do not reach the
// timeout.
//
// An order whose requests are wrong, or unlike those of the current runs, fails alone, and so does a run that
// lacks memory. Throws Error(kPeer) when ranks are lost, and any failure during messages that has made the
// engine unusable: the current runs then get no event, and continue elsewhere.
void run_world(engine::Engine& engine, const comm::World& world, const parallel::ParallelOptions& options,
               WorldPort* port, std::chrono::milliseconds idle,
               std::chrono::milliseconds between_previews = kBetweenPreviews);

}  // namespace tessera::serve
