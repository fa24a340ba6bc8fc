// An engine generates one request after another, and keeps what it has loaded and connected for the next one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/world.h"
#include "engine/component_cache.h"
#include "engine/model.h"
#include "engine/observer.h"
#include "engine/request.h"
#include "engine/result.h"
#include "parallel/layout.h"

namespace tessera::engine {

// Each rank has one engine, used by one thread. All ranks of `world` must call run() with the same requests
// and layouts in the same order. Each rank decides which components stay, by its own budget.
class Engine {
 public:
  // `budget` is the budget, in bytes, of this rank's ComponentCache. Reads the headers of all weights, but no
  // weights; throws Error(kInput) for a model that cannot run.
  explicit Engine(Model model, uint64_t budget = 0, comm::World world = {});

  // Generates `requests`, which resolve() has made for this model, in one batch. Each has its own prompts,
  // seed, guidance and generator. Size, number of steps, sampler, maximum prompt length, dtype, device and
  // kind of output must be the same for all; otherwise Error(kUsage) names what differs. `layout` is resolved
  // for their workload().
  //
  // On one rank a picture is bit-identical whether it is generated alone or in a batch: attention and
  // decoding go picture by picture, and matrix products on cores with AVX2 to AVX-512 sum a row in an order
  // that does not depend on the others (measured: fp32 and bf16, 16 to 1,024 rows of 1, 2, 4 and 8 samples).
  // This was not measured on AMX and GPUs, and is not guaranteed where ATen multiplies, where the difference
  // is within 1e-5 of the largest number (fp32).
  //
  // Each component is loaded when it is needed, unless it is still loaded. Throws Error, and on all ranks
  // Cancelled when the observer of rank 0 asks for it. No rank returns before all have agreed how the run
  // ends: after either, nothing is under way and the next request can come. A failure on one rank (too little
  // memory for a component, or an exception in a callback) is Error(kPeer) on the others. Two things make an
  // engine on several ranks unusable: the loss of a rank, and a failure while messages are in flight (for
  // example, in a step) unless all messages go through shared memory (abort() of comm/world.h).
  //
  // Rank 0 of the world gets latents and pictures, one result per request (each with the times of the batch);
  // other ranks get neither.
  std::vector<Result> run(std::span<const Settings> requests, const parallel::Layout& layout = {},
                          const Observer& observer = {});
  Result run(const Settings& request, const parallel::Layout& layout = {}, const Observer& observer = {});

  // Loads the components that a request like this one needs and that stay in memory, so that the first
  // request does not wait for them. All ranks must call it with the same arguments; it throws as run() does.
  void load(const Settings& request, const parallel::Layout& layout = {});

  // Whether the engine can take another request. It cannot after a run has ended in a way that makes it
  // unusable.
  bool is_usable() const { return is_usable_; }
  const Model& model() const { return model_; }
  // Returns the bytes of weights that stay in memory until the next request, as counted by the budget.
  uint64_t bytes_loaded() const { return components_.bytes(); }

  Engine(const Engine&) = delete;  // the components refer to the model
  Engine& operator=(const Engine&) = delete;

 private:
  friend class Session;
  // Gives up all messages after a failure in their midst. The next run can use the world if all ranks call
  // this.
  void give_up();

  Model model_;
  ComponentCache components_;
  comm::World world_;
  bool is_usable_ = true;
};

}  // namespace tessera::engine
