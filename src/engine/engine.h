// An engine that stays: it paints one request after another, and what it has loaded and connected for one is
// there for the next.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "comm/world.h"
#include "core/image.h"
#include "engine/component_cache.h"
#include "engine/model.h"
#include "engine/observer.h"
#include "engine/request.h"
#include "parallel/layout.h"

namespace tessera::engine {

// Wall-clock seconds of a run.
struct Seconds {
  double load = 0;  // of all parts that were not there
  double encode = 0;
  double denoise = 0;
  double decode = 0;
  double total = 0;
};

struct Result {
  at::Tensor latents;         // [N, C, h, w], fp32, on the CPU; the VAE's scaling is not undone
  std::vector<Image> images;  // N; none for OutputType::kLatent
  Seconds seconds;
  std::vector<double> step_seconds;
  // Sums over the parts that were used, which need not be in memory at one time. What the weights take once
  // loaded, in the dtype and layout of the layers (weights::MemoryCounter); and bytes of the checkpoint's
  // files that they were made of. In neither: tables of which only the rows that a prompt needs are looked
  // up, in the file.
  uint64_t weights_bytes = 0;
  uint64_t bytes_read = 0;
};

// One for each rank; it is used by one thread. All ranks of `world` must call run() with the same requests
// and layouts in the same order; which parts stay is each rank's own affair, also its budget.
class Engine {
 public:
  // `budget`: of ComponentCache, in bytes, on this rank. Reads the headers of all weights: throws
  // Error(kInput) for a model that could not run. No weight is loaded yet.
  explicit Engine(Model model, uint64_t budget = 0, comm::World world = {});

  // Paints `requests`, which resolve() made for this model, in one batch: each with prompts, seed, guidance
  // and generator of its own, all of one size, number of steps, sampler, length of prompts, dtype, device and
  // kind of output (else Error(kUsage) names what differs). `layout` is made for their workload().
  //
  // On one rank a picture has the bits that it has alone, whatever its company: attention and decoding go
  // picture by picture, and products on cores with AVX2 to AVX-512 sum a row in an order that does not depend
  // on the others (measured: fp32 and bf16, 16 to 1,024 rows of 1, 2, 4 and 8 samples). Not measured on AMX
  // and on GPUs, nor promised where ATen multiplies: there within 1e-5 of the largest number (fp32).
  //
  // Each part is loaded when its turn comes, where it is not there. Throws Error, and on all ranks Cancelled
  // when the observer of rank 0 says so. No rank returns before all have agreed how the run ends: after
  // either, nothing is under way any more and the next request can come. What fails on one rank (a part that
  // finds no memory, a callback of the observer) is Error(kPeer) on the others. Two things end the engine on
  // several ranks: a rank that is lost; and a failure amid messages, in a step say, where messages do not go
  // through memory alone (abort() of comm/world.h).
  //
  // Rank 0 of the world gets latents and pictures, one result for each request (with the times of all); the
  // others get neither.
  std::vector<Result> run(std::span<const Settings> requests, const parallel::Layout& layout = {},
                          const Observer& observer = {});
  Result run(const Settings& request, const parallel::Layout& layout = {}, const Observer& observer = {});

  const Model& model() const { return model_; }
  // Of the weights that stay in memory until the next request, as the budget counts them.
  uint64_t bytes_loaded() const { return components_.bytes(); }

  Engine(const Engine&) = delete;  // the parts refer to the model
  Engine& operator=(const Engine&) = delete;

 private:
  Model model_;
  ComponentCache components_;
  comm::World world_;
  bool is_usable_ = true;
};

}  // namespace tessera::engine
