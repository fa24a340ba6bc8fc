#include "plan/planner/prediction.h"

#include <algorithm>
#include <utility>

#include "engine/denoiser_stage.h"
#include "parallel/layout_rules.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/planner/sampled_trace.h"
#include "plan/trace_model.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

using parallel::Axis;

constexpr const char* kWhere = "plan";
// Of bytes by formula: parts that do not divide evenly differ by a few.
constexpr double kBoundMargin = 0.95;

double real(int64_t value) {
  return static_cast<double>(value);
}

// The first rank of each stage, or all, and which of them does what a rank of the world does.
std::vector<int64_t> representatives(const parallel::Layout& layout, bool are_all,
                                     std::vector<size_t>& stands_for) {
  const parallel::Mesh mesh(layout.sizes);
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; are_all && rank < mesh.world_size(); ++rank) {
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

// Without the encoding of prompts: a trace holds all weights of a text encoder, a run reads the layers of a
// T5 one after the other where they are needed.
int64_t peak_of(const RankTrace& rank) {
  return std::max(rank.peak_bytes(Phase::kDenoise), rank.peak_bytes(Phase::kDecode));
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

// Ranks of unequal shares or speeds all take a time of their own.
bool Predictor::all_differ(const parallel::Layout& layout) const {
  if (!layout.rank_shares.empty()) return true;
  for (int64_t rank = 1; rank < parallel::Mesh(layout.sizes).world_size(); ++rank) {
    if (costs_.machine().speed(rank) != costs_.machine().speed(0)) return true;
  }
  return false;
}

Costs Predictor::costs_of(const parallel::Layout& layout) const {
  Costs costs = costs_on(costs_.machine(), links_, parallel::Mesh(layout.sizes).world_size());
  costs.keeps_spans = false;
  std::vector<size_t> stands_for;
  for (const int64_t rank : representatives(layout, all_differ(layout), stands_for))
    costs.slow.push_back(1 / costs_.machine().speed(rank));
  return costs;
}

Trace Predictor::sample(const parallel::Layout& layout, std::vector<size_t>& stands_for) {
  const int64_t steps = steps_to_trace(settings_, layout);
  Trace trace;
  trace.world_size = parallel::Mesh(layout.sizes).world_size();
  SampledTraces traces(settings_, model_, layout, steps, equal_);
  for (const int64_t rank : representatives(layout, all_differ(layout), stands_for))
    trace.ranks.push_back(traces.of(rank));
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
    if (rank > 1 && rank + 1 < trace.world_size && !all_differ(layout)) {
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
  if (!all_differ(layout)) costs.slow.assign(schedule.ranks.size(), costs.slow.front());
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
  for (const int64_t rank : representatives(layout, all_differ(layout), stands_for))
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

double Predictor::least_computing() {
  if (alone_) return *alone_;
  parallel::Layout alone;
  alone.stage_blocks = {model_.shape.blocks};
  std::vector<size_t> stands_for;
  const Trace trace = sample(alone, stands_for);
  double seconds = 0;
  const RankTrace& rank = trace.ranks.front();
  for (size_t event = 0; event < rank.events.size(); ++event) {
    for (const MappedWork* const mapped : costs_.operators(rank, event))
      seconds += costs_.least_seconds(*mapped) /
                 costs_.machine().efficiency.most(work_kind(mapped->work), mapped->dtype) *
                 real(times_in_run(rank.events[event], trace.traced_steps, trace.steps));
  }
  alone_ = seconds;
  return seconds;
}

// What a rank of two sends in a step and waits for at once; of a ring what it sends while it computes, which
// is as much as a gather.
double Predictor::unhidden_bytes(Axis axis) {
  const auto [place, is_new] = unhidden_.try_emplace(axis, 0);
  if (!is_new) return place->second;
  parallel::ParallelOptions wish;
  if (axis == Axis::kTensorInner) wish.tensor_parallel_degree = 2;
  if (axis == Axis::kUlysses) wish.ulysses_degree = 2;
  if (axis == Axis::kGather || axis == Axis::kRing) wish.kv_gather_degree = 2;
  const parallel::Workload workload = engine::workload(settings_, model_);
  if (!parallel::violations(wish, workload).empty()) return 0;
  std::vector<size_t> stands_for;
  const Trace trace = sample(parallel::resolve_layout(wish, workload, std::nullopt), stands_for);
  const std::vector<Event>& events = trace.ranks.front().events;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const auto* const collective = std::get_if<CollectiveEvent>(&events[i].what);
    const auto* const wait = std::get_if<WaitEvent>(&events[i + 1].what);
    if (collective == nullptr || wait == nullptr || wait->number != collective->number) continue;
    if (events[i].phase == Phase::kDenoise && events[i].step == 0) place->second += real(collective->bytes);
  }
  return place->second;
}

double Predictor::least_seconds(const parallel::Layout& layout) {
  const parallel::PerAxis& sizes = layout.sizes;
  // In the warm-up, stages work one after the other.
  const double serial = real(layout.warmup_steps) * real(sizes[Axis::kPipeline] - 1) / real(settings_.steps);
  const double computing = least_computing() / real(parallel::Mesh(sizes).world_size()) * (1 + serial);
  double bandwidth = 0;  // of the best link
  for (const Link& link : links_) {
    if (!link.measured.empty() || !link.bandwidth) return computing;
    bandwidth = std::max(bandwidth, *link.bandwidth);
  }
  if (bandwidth == 0 || layout.displacement || !layout.rank_shares.empty()) return computing;
  // With n ranks, of the bytes with two: of gathers and sums 2 (n - 1) / n, of exchanges 4 (n - 1) / n^2,
  // over what other methods divide.
  const auto count = [&](Axis axis) { return real(sizes[axis]); };
  const double tokens = count(Axis::kUlysses) * count(Axis::kGather) * count(Axis::kRing);
  const double others = count(Axis::kPipeline) * count(Axis::kCfg) * count(Axis::kData);
  double bytes = 0;
  if (const double n = count(Axis::kTensorInner); n > 1 && sizes[Axis::kTensorOuter] == 1)
    bytes += unhidden_bytes(Axis::kTensorInner) * 2 * (n - 1) / n / tokens;
  if (const double n = count(Axis::kUlysses); n > 1 && !layout.dsp)
    bytes += unhidden_bytes(Axis::kUlysses) * 4 * (n - 1) / (n * tokens) / count(Axis::kTensorInner) /
             count(Axis::kTensorOuter);
  if (const double n = count(Axis::kGather); n > 1)
    bytes += unhidden_bytes(Axis::kGather) * 2 * (n - 1) / tokens / count(Axis::kTensorInner) /
             count(Axis::kTensorOuter);
  double hidden = 0;
  if (const double n = count(Axis::kRing); n > 1)
    hidden = unhidden_bytes(Axis::kRing) * 2 * (n - 1) * count(Axis::kGather) / tokens /
             count(Axis::kTensorInner) / count(Axis::kTensorOuter);
  const double seconds = real(settings_.steps) * kBoundMargin / others / bandwidth;
  return std::max(computing, hidden * seconds) + bytes * seconds;
}

}  // namespace tessera::plan
