#include "plan/planner/prediction.h"

#include <algorithm>
#include <utility>

#include "engine/denoiser_stage.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/planner/sampled_trace.h"
#include "plan/trace_model.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

using parallel::Axis;

constexpr const char* kWhere = "plan";

double real(int64_t value) {
  return static_cast<double>(value);
}

// The first rank of each stage, and which of them does what a rank of the world does. Ranks of unequal shares
// all do something of their own.
std::vector<int64_t> representatives(const parallel::Layout& layout, std::vector<size_t>& stands_for) {
  const parallel::Mesh mesh(layout.sizes);
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; !layout.rank_shares.empty() && rank < mesh.world_size(); ++rank) {
    ranks.push_back(rank);
    stands_for.push_back(static_cast<size_t>(rank));
  }
  if (!ranks.empty()) return ranks;
  for (int64_t stage = 0; stage < layout.sizes[Axis::kPipeline]; ++stage) {
    parallel::PerAxis place{0};
    place[Axis::kPipeline] = stage;
    ranks.push_back(mesh.rank_at(place));
  }
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank)
    stands_for.push_back(static_cast<size_t>(mesh.coordinates(rank)[Axis::kPipeline]));
  return ranks;
}

// Of a layout all that the encoding and the decoding of a request depend on.
std::vector<int64_t> ends_key(const parallel::Layout& layout) {
  const parallel::Mesh mesh(layout.sizes);
  return {mesh.size(parallel::kReplicaAxes), layout.sizes[Axis::kData], layout.vae_parallel ? 1 : 0,
          layout.text_encoder_parallel ? 1 : 0};
}

int64_t peak_of(const RankTrace& rank) {
  int64_t most = 0;
  for (const Phase phase : kAllPhases) most = std::max(most, rank.peak_bytes(phase));
  return most;
}

}  // namespace

int64_t Prediction::most_bytes() const {
  return peak_bytes.empty() ? 0 : *std::max_element(peak_bytes.begin(), peak_bytes.end());
}

Predictor::Predictor(const engine::Settings& settings, const engine::Model& model, const Machine& machine,
                     std::vector<Link> links)
    : settings_(settings),
      model_(model),
      costs_(machine),
      links_(std::move(links)),
      equal_(equal_blocks(settings, model)) {}

Costs Predictor::costs_of(const parallel::Layout& layout) const {
  Costs costs = costs_on(costs_.machine(), links_, parallel::Mesh(layout.sizes).world_size());
  costs.keeps_spans = false;
  std::vector<size_t> stands_for;
  for (const int64_t rank : representatives(layout, stands_for))
    costs.slow.push_back(1 / costs_.machine().speed(rank));
  return costs;
}

Trace Predictor::sample(const parallel::Layout& layout, std::vector<size_t>& stands_for) {
  const int64_t steps = steps_to_trace(settings_, layout);
  Trace trace;
  trace.world_size = parallel::Mesh(layout.sizes).world_size();
  for (const int64_t rank : representatives(layout, stands_for))
    trace.ranks.push_back(sampled_trace(settings_, model_, layout, rank, steps, equal_));
  // Of the run, how often it evaluates the denoiser.
  const auto evaluations = [&](int64_t count) {
    engine::Settings settings = settings_;
    settings.request.num_inference_steps = settings.steps = count;
    return engine::make_sampler(settings, model_)->steps();
  };
  trace.steps = evaluations(settings_.steps);
  trace.traced_steps = evaluations(steps);
  return trace;
}

Prediction Predictor::predict_denoiser(const parallel::Layout& layout) {
  std::vector<size_t> stands_for;
  const Trace trace = sample(layout, stands_for);
  const Schedule schedule = schedule_of(trace, costs_, kWhere, stands_for);
  const RunCosts run = run_costs(schedule, trace.steps, costs_of(layout), kWhere);
  Prediction prediction;
  const size_t busiest = run.busiest();
  prediction.denoise = run.seconds * turns(layout);
  prediction.seconds = prediction.denoise;
  prediction.step_seconds = run.step_seconds;
  prediction.step = run.ranks[busiest].step;
  prediction.imbalance = run.imbalance();
  prediction.sent = real(sent_bytes(trace.ranks[busiest], {trace.traced_steps, trace.steps}).step);
  prediction.is_exact = layout.is_exact();
  return prediction;
}

double Predictor::turns(const parallel::Layout& layout) const {
  return real(groups_of(settings_, layout)) * real(settings_.video.loops);
}

// Encoding and decoding; the blocks of the denoiser are left out. Rows are at an edge of the picture or
// between others: the second rank stands for all of these.
Schedule Predictor::ends_schedule(const parallel::Layout& layout) {
  const engine::SampleBlocks none([&](int64_t) { return equal_.empty() || layout.displacement; });
  Trace trace;
  trace.world_size = parallel::Mesh(layout.sizes).world_size();
  std::vector<size_t> stands_for;
  for (int64_t rank = 0; rank < trace.world_size; ++rank) {
    if (rank > 1 && rank + 1 < trace.world_size && layout.rank_shares.empty()) {
      stands_for.push_back(1);
      continue;
    }
    stands_for.push_back(trace.ranks.size());
    trace.ranks.push_back(trace_rank(settings_, model_, layout, rank, 1, {.names_roles = false}));
    std::erase_if(trace.ranks.back().events,
                  [](const Event& event) { return event.phase == Phase::kDenoise; });
  }
  return schedule_of(trace, costs_, kWhere, stands_for);
}

const Predictor::Ends& Predictor::ends(const parallel::Layout& layout) {
  const auto [place, is_new] = ends_.try_emplace(ends_key(layout));
  if (!is_new) return place->second;
  const Schedule schedule = ends_schedule(layout);
  Costs costs = costs_of(layout);
  if (layout.rank_shares.empty()) costs.slow.assign(schedule.ranks.size(), costs.slow.front());
  const RunCosts run = run_costs(schedule, 1, costs, kWhere);
  place->second = {run.phase_seconds(Phase::kEncode), run.phase_seconds(Phase::kDecode) * turns(layout)};
  return place->second;
}

std::vector<MeasuredRun::Piece> Predictor::pieces(const parallel::Layout& layout) {
  std::vector<size_t> stands_for;
  const Trace trace = sample(layout, stands_for);
  return {{schedule_of(trace, costs_, kWhere, stands_for), trace.steps, turns(layout)},
          {ends_schedule(layout), 1, 1}};
}

void Predictor::add_memory(const parallel::Layout& layout, Prediction& prediction) const {
  prediction.peak_bytes.clear();
  const int64_t steps = steps_to_trace(settings_, layout);
  std::vector<size_t> stands_for;
  for (const int64_t rank : representatives(layout, stands_for))
    prediction.peak_bytes.push_back(
        peak_of(trace_rank(settings_, model_, layout, rank, steps, {.names_roles = false})));
}

void Predictor::add_ends(const parallel::Layout& layout, Prediction& prediction) {
  const Ends& of_request = ends(layout);
  prediction.encode = of_request.encode;
  prediction.decode = of_request.decode;
  prediction.seconds = prediction.denoise + prediction.encode + prediction.decode;
}

Prediction Predictor::predict(const parallel::Layout& layout) {
  Prediction prediction = predict_denoiser(layout);
  add_ends(layout, prediction);
  add_memory(layout, prediction);
  return prediction;
}

double Predictor::least_seconds(const parallel::Layout& layout) {
  if (!alone_) {
    parallel::Layout alone;
    alone.stage_blocks = {model_.shape.blocks};
    const Trace trace = [&] {
      std::vector<size_t> stands_for;
      return sample(alone, stands_for);
    }();
    double seconds = 0;
    const RankTrace& rank = trace.ranks.front();
    for (size_t event = 0; event < rank.events.size(); ++event) {
      for (const MappedWork* const mapped : costs_.operators(rank, event))
        seconds += costs_.least_seconds(*mapped) *
                   real(times_in_run(rank.events[event], trace.traced_steps, trace.steps));
    }
    alone_ = seconds;
  }
  return *alone_ / real(parallel::Mesh(layout.sizes).world_size());
}

}  // namespace tessera::plan
