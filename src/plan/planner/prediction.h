// Predicts how long a run takes in a layout, and what it holds, tracing only what differs: equal blocks once,
// and among ranks that do the same at the same time the one with the largest parts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "parallel/layout.h"
#include "parallel/options.h"
#include "plan/hardware/operation_costs.h"
#include "plan/planner/fit.h"
#include "plan/planner/least_time.h"
#include "plan/run_costs.h"

namespace tessera::plan {

struct Prediction {
  double seconds = 0;       // for the whole request
  double step_seconds = 0;  // for a steady step
  double steps = 0;         // their number, including the first ones
  double encode = 0, denoise = 0, decode = 0;
  RankTime step{};       // for the rank that computes longest, in a steady step
  double imbalance = 1;  // its work divided by the mean of the simulated ranks
  // If choose_ends() had a choice: how long the other way to encode and to decode takes.
  std::optional<double> other_encode, other_decode;
  double sent = 0;  // the most bytes that a rank sends in a steady step
  // The most that a rank holds, by simulated rank: the first of each stage.
  std::vector<int64_t> peak_bytes;
  bool is_exact = true;

  int64_t most_bytes() const;
};

// For one request on the devices of a machine. Not for use by several threads at a time.
class Predictor {
 public:
  // All arguments must outlive it. `links` are as in Costs::links. Ranks of one host slow each other down, as
  // do those of other runs if `busy_devices` compute at once.
  Predictor(const engine::Settings& settings, const engine::Model& model, const Machine& machine,
            std::vector<Link> links, int64_t busy_devices = 1);

  // Throws as tracing does.
  Prediction predict(const parallel::Layout& layout);
  // Its pieces: the denoiser alone, which add_ends() completes with encoding and decoding, and add_memory()
  // with `peak_bytes`.
  Prediction predict_denoiser(const parallel::Layout& layout);
  void add_ends(const parallel::Layout& layout, Prediction& prediction);
  void add_memory(const parallel::Layout& layout, Prediction& prediction) const;
  // Calls add_ends() for the fastest way to encode and to decode that `wish` leaves open, and writes that way
  // to `wish` and `layout`: all ranks of a replica together, which is the default, or one rank alone. The
  // latter is chosen only if it saves a thousandth of the request.
  void choose_ends(parallel::ParallelOptions& wish, parallel::Layout& layout, Prediction& prediction);

  // Everything that a request does in the layout, for a fit (plan/planner/fit.h).
  std::vector<MeasuredRun::Piece> pieces(const parallel::Layout& layout);

  // Lower bounds of the denoiser's seconds in the layout (plan/planner/least_time.h). The rough ones may be
  // too high: they only order layouts that are equally fast.
  double rough_least_seconds(const parallel::Layout& layout);
  double least_seconds(const parallel::Layout& layout, double least_computing = 0);
  // A lower bound for encoding and decoding in the fastest ways that `wish` leaves open.
  double least_ends(const parallel::ParallelOptions& wish, const parallel::Layout& layout);

 private:
  struct Ends {
    double encode = 0, decode = 0;
  };
  const std::vector<models::Conditioning>* prompts() const { return prompts_ ? &*prompts_ : nullptr; }
  const Ends& ends(const parallel::Layout& layout);
  const Ends& other_ends(const parallel::ParallelOptions& wish, const parallel::Layout& layout);
  Schedule ends_schedule(const parallel::Layout& layout);
  SampledRanks sample(const parallel::Layout& layout);
  LeastTime::Sampler sampler() {
    return [this](const parallel::Layout& layout) { return sample(layout); };
  }
  // The schedule of `ranks`, with all repeats.
  Schedule schedule(const SampledRanks& ranks);
  bool all_differ(const parallel::Layout& layout) const;
  Costs costs_of(const parallel::Layout& layout) const;

  const engine::Settings& settings_;
  const engine::Model& model_;
  int64_t busy_devices_;
  OperationCosts costs_;
  std::vector<Link> links_;
  std::optional<std::vector<models::Conditioning>> prompts_;
  std::vector<int64_t> equal_;
  LeastTime rough_least_, least_;
  std::map<std::vector<int64_t>, Ends> ends_;  // by the settings that they depend on
};

}  // namespace tessera::plan
