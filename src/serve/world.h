// A world: ranks that keep a model loaded, and advance the runs that a front asks for by a step at a time.
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

// What a front asks of a world, between two steps.
struct WorldOrder {
  enum class Kind {
    kBegin,   // of `requests`, as a batch
    kResume,  // the same requests, from where `saved` stands
    kSave,    // answered by kSaved, or by nothing if the run has ended or cannot be saved
    kDrop,    // without an answer; does nothing to a run that has ended
    kEnd      // the world, after dropping all runs
  };
  Kind kind = Kind::kEnd;
  int64_t run = 0;                    // a number that no other run has
  std::vector<std::string> requests;  // JSON, as engine::request_fields() has it, with seeds
  std::string saved;                  // engine::write_saved_run()
  int64_t preview_every = 0;          // steps; 0: never
};

// What a world answers, on rank 0.
struct WorldEvent {
  enum class Kind {
    kStep,     // `step` of `steps` are done
    kPreview,  // after `step`: `latents`
    kPicture,  // the picture `index` of the batch, request after request
    kSaved,    // where the run stands: `saved`
    kEnded,    // every picture is there; `seconds` of the run's parts
    kFailed    // the run has ended with `exit_code` and `message`
  };
  Kind kind = Kind::kStep;
  int64_t run = 0;
  int64_t step = 0, steps = 0;
  at::Tensor latents = {};  // [N, C, (T,) h, w], fp32, on the CPU
  int64_t index = 0;
  Image image = {};
  std::string saved = {};
  engine::Seconds seconds = {};
  int exit_code = 0;
  std::string message = {};
};

// The way between rank 0 of a world and its front. An exception of it ends the world.
class WorldPort {
 public:
  virtual ~WorldPort() = default;
  // Returns the orders that have come; waits for one for up to `wait`.
  virtual std::vector<WorldOrder> orders(std::chrono::milliseconds wait) = 0;
  virtual void tell(const WorldEvent& event) = 0;
};

// Carries out orders until one ends the world. All ranks of `world`, which is that of `engine`, must call it;
// `port` is that of rank 0, and null on others. Between the steps of runs an order costs a message to each
// rank. Without runs, rank 0 sends one every `idle`, so that the others wait in a message for less than its
// timeout, without computing.
//
// An order whose requests are wrong, or not like those of the runs under way, fails alone. Throws
// Error(kPeer) when ranks are lost, or when a failure amid messages has made the engine unusable: then the
// runs under way get no event, and go on elsewhere.
void run_world(engine::Engine& engine, const comm::World& world, const parallel::ParallelOptions& options,
               WorldPort* port, std::chrono::milliseconds idle);

}  // namespace tessera::serve
