#include "plan/planner/prediction.h"

#include <algorithm>
#include <utility>

#include "engine/denoiser_stage.h"
#include "parallel/layout_rules.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/trace_model.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

using parallel::Axis;

constexpr const char* kWhere = "plan";
// Relative to the seconds of a request: a smaller gain is no reason to leave a default.
constexpr double kLeastGain = 1e-3;

bool are_equal(const std::vector<int64_t>& blocks) {
  return !blocks.empty() && std::all_of(blocks.begin(), blocks.end(), [](int64_t kind) { return kind == 0; });
}

// The first rank of each stage, or all ranks, and which of them represents each rank of the world.
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

// Everything about a layout that encoding and decoding of a request depend on.
std::vector<int64_t> ends_key(const parallel::Layout& layout) {
  const parallel::Mesh mesh(layout.sizes);
  return {mesh.size(parallel::kReplicaAxes), layout.sizes[Axis::kData], layout.vae_parallel ? 1 : 0,
          layout.text_encoder_parallel ? 1 : 0};
}

// The bytes that a steady step sends.
double sent_in_step(const RankSchedule& rank) {
  double sent = 0;
  for (const Stretch& stretch : rank.program) {
    for (size_t i = stretch.begin; stretch.is_steady && i < stretch.end; ++i) sent += rank.tasks[i].sent;
  }
  return sent;
}

}  // namespace

int64_t Prediction::most_bytes() const {
  return peak_bytes.empty() ? 0 : *std::max_element(peak_bytes.begin(), peak_bytes.end());
}

Predictor::Predictor(const engine::Settings& settings, const engine::Model& model, const Machine& machine,
                     std::vector<Link> links, int64_t busy_devices)
    : settings_(settings),
      model_(model),
      busy_devices_(busy_devices),
      costs_(machine),
      links_(std::move(links)),
      prompts_(encode_prompts(settings, model)),
      equal_(equal_blocks(settings, model, prompts())),
      rough_least_(settings, model, costs_, links_, are_equal(equal_), sampler(), LeastTime::Detail::kRough),
      least_(settings, model, costs_, links_, are_equal(equal_), sampler(), LeastTime::Detail::kFull) {}

// Ranks with unequal shares or speeds each take a time of their own.
bool Predictor::all_differ(const parallel::Layout& layout) const {
  if (!layout.rank_shares.empty()) return true;
  for (int64_t rank = 1; rank < parallel::Mesh(layout.sizes).world_size(); ++rank) {
    if (costs_.machine().speed(rank) != costs_.machine().speed(0)) return true;
  }
  return false;
}

Costs Predictor::costs_of(const parallel::Layout& layout) const {
  Costs costs =
      costs_on(costs_.machine(), links_, std::max(parallel::Mesh(layout.sizes).world_size(), busy_devices_));
  costs.keeps_spans = false;
  std::vector<size_t> stands_for;
  for (const int64_t rank : representatives(layout, all_differ(layout), stands_for))
    costs.slow.push_back(1 / costs_.machine().speed(rank));
  return costs;
}

SampledRanks Predictor::sample(const parallel::Layout& layout) {
  const int64_t steps = steps_to_trace(settings_, layout);
  SampledRanks ranks;
  ranks.trace.world_size = parallel::Mesh(layout.sizes).world_size();
  SampledTraces traces(settings_, model_, layout, steps, equal_, prompts());
  for (const int64_t rank : representatives(layout, all_differ(layout), ranks.stands_for)) {
    SampledTrace sampled = traces.of(rank);
    ranks.trace.ranks.push_back(std::move(sampled.trace));
    ranks.repeats.push_back(std::move(sampled.repeats));
  }
  // How often the run evaluates the denoiser.
  const auto evaluations = [&](int64_t count) {
    engine::Settings settings = settings_;
    settings.request.num_inference_steps = settings.steps = count;
    return engine::make_sampler(settings, model_)->steps();
  };
  ranks.trace.steps = evaluations(settings_.steps);
  ranks.trace.traced_steps = evaluations(steps);
  return ranks;
}

Schedule Predictor::schedule(const SampledRanks& ranks) {
  Schedule schedule = schedule_of(ranks.trace, costs_, kWhere, ranks.stands_for);
  for (size_t i = 0; i < schedule.ranks.size(); ++i) repeat_tasks(schedule.ranks[i], ranks.repeats[i]);
  return schedule;
}

Prediction Predictor::predict_denoiser(const parallel::Layout& layout) {
  const SampledRanks ranks = sample(layout);
  const Schedule of_ranks = schedule(ranks);
  const RunCosts run = run_costs(of_ranks, ranks.trace.steps, costs_of(layout), kWhere);
  Prediction prediction;
  const size_t busiest = run.busiest();
  prediction.denoise = run.seconds * turns_of(settings_, layout);
  prediction.seconds = prediction.denoise;
  prediction.step_seconds = run.step_seconds;
  prediction.steps = static_cast<double>(ranks.trace.steps * turns_of(settings_, layout));
  prediction.step = run.ranks[busiest].step;
  prediction.imbalance = run.imbalance();
  for (const RankSchedule& rank : of_ranks.ranks)
    prediction.sent = std::max(prediction.sent, sent_in_step(rank));
  prediction.is_exact = layout.is_exact();
  return prediction;
}

// Encoding and decoding, without the blocks of the denoiser. A rank's rows are at an edge of the picture or
// between those of others; the second rank represents all ranks of the latter kind.
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
  place->second = {run.phase_seconds(Phase::kEncode),
                   run.phase_seconds(Phase::kDecode) * turns_of(settings_, layout)};
  return place->second;
}

std::vector<MeasuredRun::Piece> Predictor::pieces(const parallel::Layout& layout) {
  const SampledRanks ranks = sample(layout);
  return {{schedule(ranks), ranks.trace.steps, turns_of(settings_, layout)}, {ends_schedule(layout), 1, 1}};
}

void Predictor::add_memory(const parallel::Layout& layout, Prediction& prediction) const {
  prediction.peak_bytes.clear();
  const int64_t steps = steps_to_trace(settings_, layout);
  const bool are_all = all_differ(layout);
  std::vector<size_t> stands_for;
  std::map<std::vector<int64_t>, int64_t> between;  // by the kinds of a stage's blocks
  for (const int64_t rank : representatives(layout, are_all, stands_for)) {
    const std::vector<int64_t> kinds = are_all ? std::vector<int64_t>{} : kinds_between(layout, rank, equal_);
    const auto known = between.find(kinds);
    if (known != between.end()) {
      prediction.peak_bytes.push_back(known->second);
      continue;
    }
    prediction.peak_bytes.push_back(
        trace_rank(settings_, model_, layout, rank, steps, {.names_roles = false}).peak_bytes());
    if (!kinds.empty()) between[kinds] = prediction.peak_bytes.back();
  }
}

void Predictor::add_ends(const parallel::Layout& layout, Prediction& prediction) {
  const Ends& of_request = ends(layout);
  prediction.encode = of_request.encode;
  prediction.decode = of_request.decode;
  prediction.seconds = prediction.denoise + prediction.encode + prediction.decode;
}

// For the other ways that the wish leaves open.
const Predictor::Ends& Predictor::other_ends(const parallel::ParallelOptions& wish,
                                             const parallel::Layout& layout) {
  parallel::Layout other = layout;
  if (!wish.text_encoder_parallel) other.text_encoder_parallel = !layout.text_encoder_parallel;
  if (!wish.vae_parallel) other.vae_parallel = !layout.vae_parallel;
  return ends(other);
}

double Predictor::least_ends(const parallel::ParallelOptions& wish, const parallel::Layout& layout) {
  const Ends& own = ends(layout);
  if (parallel::Mesh(layout.sizes).size(parallel::kReplicaAxes) == 1) return own.encode + own.decode;
  const Ends& others = other_ends(wish, layout);
  return std::min(own.encode, others.encode) + std::min(own.decode, others.decode);
}

void Predictor::choose_ends(parallel::ParallelOptions& wish, parallel::Layout& layout,
                            Prediction& prediction) {
  if (parallel::Mesh(layout.sizes).size(parallel::kReplicaAxes) > 1) {
    const Ends own = ends(layout), others = other_ends(wish, layout);
    const double least = kLeastGain * (prediction.denoise + own.encode + own.decode);
    const auto choose = [&](std::optional<bool>& of_wish, bool& of_layout, double here, double there,
                            std::optional<double>& not_chosen) {
      if (of_wish || here == there) return;
      const bool is_better = here - there > least;
      not_chosen = is_better ? here : there;
      if (is_better) of_wish = of_layout = !of_layout;
    };
    choose(wish.text_encoder_parallel, layout.text_encoder_parallel, own.encode, others.encode,
           prediction.other_encode);
    choose(wish.vae_parallel, layout.vae_parallel, own.decode, others.decode, prediction.other_decode);
  }
  add_ends(layout, prediction);
}

Prediction Predictor::predict(const parallel::Layout& layout) {
  Prediction prediction = predict_denoiser(layout);
  add_ends(layout, prediction);
  add_memory(layout, prediction);
  return prediction;
}

double Predictor::rough_least_seconds(const parallel::Layout& layout) {
  return rough_least_.of(layout);
}

double Predictor::least_seconds(const parallel::Layout& layout, double least_computing) {
  return least_.of(layout, least_computing);
}

}  // namespace tessera::plan
