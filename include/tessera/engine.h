// An engine reads a model and generates one request after another with it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/api.h"
#include "tessera/error.h"
#include "tessera/observer.h"
#include "tessera/parallel_options.h"
#include "tessera/request.h"
#include "tessera/result.h"

namespace tessera {

// This process as one of the ranks that generate together. Copies share the connections.
class TESSERA_API World {
 public:
  World();  // of one rank

  // Joins the ranks that torchrun, Open MPI, MPICH or Slurm has started, according to their environment
  // variables; without these, returns a world of one rank. Returns when all have joined. Throws Error(kUsage)
  // for variables that contradict each other, and Error(kPeer) when a rank does not arrive within five
  // minutes.
  static World from_environment();

  int64_t rank() const;
  int64_t size() const;

 private:
  friend class Engine;
  struct Connections;
  std::shared_ptr<Connections> connections_;
};

struct EngineOptions {
  // A folder as diffusers saves it, a file of weights (.safetensors or .gguf, with `config`), or the name of
  // a model that ships. Empty: "shapes", which ships.
  std::string model;
  std::string config;   // folder of the configs and tokenizers that belong to a file of weights
  std::string variant;  // of the weight files, for example "fp16"
  // How many bytes of weights this rank keeps loaded for the next request.
  uint64_t memory_budget = 0;
  ParallelOptions parallel;
};

// An engine is used by one thread. Every rank of a world has its own engine, made with the same options, and
// makes the same calls in the same order.
class TESSERA_API Engine {
 public:
  // Reads the headers of all weights, but no weights. Throws Error: kInput for a model that cannot run.
  explicit Engine(const EngineOptions& options = {}, const World& world = {});
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // Generates the requests in one batch. Each has its own prompts, seed, guidance and generator; size, number
  // of steps, sampler, maximum prompt length, dtype, device and kind of output must be the same for all. A
  // picture on one rank is the same, bit for bit, alone and in a batch (on processors with AVX2 or AVX-512).
  // Returns a result for each request; latents and images are those of rank 0, and empty on other ranks.
  //
  // Throws Error, and Cancelled when the observer of rank 0 asks for it, on all ranks. After either, the
  // engine can take the next request, unless a rank is lost.
  std::vector<Result> generate(std::span<const Request> requests, const Observer& observer = {});
  Result generate(const Request& request, const Observer& observer = {});

  // Returns the request with the engine's choice for everything it leaves out: size, steps, dtype, seed.
  // Throws Error(kUsage) for what the model cannot do.
  Request resolved(const Request& request) const;

  // Bytes of weights that stay in memory until the next request.
  uint64_t bytes_loaded() const;

 private:
  friend class Session;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
