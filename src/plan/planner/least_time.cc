#include "plan/planner/least_time.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "parallel/layout_rules.h"
#include "parallel/mesh.h"
#include "plan/run_costs.h"
#include "plan/schedule.h"
#include "plan/trace_model.h"

namespace tessera::plan {
namespace {

using parallel::Axis;

// For numbers from formulas: parts that do not divide evenly, and messages that overlap, cause small
// differences.
constexpr double kLeastTimeMargin = 0.95;
// The most elements that a block computes for rows, relative to what it computes for each step.
constexpr int64_t kMostExpansion = 16;

// For the first rank, by event: how often it happens on average in an evaluation of the denoiser.
std::vector<double> times_in_step(const SampledRanks& ranks) {
  const std::vector<Event>& events = ranks.trace.ranks.front().events;
  const std::vector<int64_t> copies = copies_of(ranks.repeats.front(), events.size());
  std::vector<double> times;
  for (size_t i = 0; i < events.size(); ++i)
    times.push_back(static_cast<double>(
                        copies[i] * times_in_run(events[i], ranks.trace.traced_steps, ranks.trace.steps)) /
                    static_cast<double>(ranks.trace.steps));
  return times;
}

// The number of kernels of the blocks that the first rank launches in a step.
double launches_in_step(const SampledRanks& ranks) {
  const std::vector<Event>& events = ranks.trace.ranks.front().events;
  const std::vector<double> times = times_in_step(ranks);
  double launches = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto* const operation = std::get_if<OperationEvent>(&events[i].what);
    if (operation != nullptr && operation->block >= 0)
      launches += static_cast<double>(launches_of(operation->name)) * times[i];
  }
  return launches;
}

int64_t elements_of_output(const OperationEvent& operation) {
  return c10::multiply_integers(operation.output.sizes);
}

// If parts do not divide evenly, the largest is at least the quotient rounded down.
int64_t part_of(int64_t size, int64_t parts) {
  return std::max<int64_t>(size / parts, 1);
}

// The number of copies that a rank makes between posting a message and waiting for it; nothing if it does
// anything else.
std::optional<size_t> copies_until_wait(const std::vector<Event>& events, size_t post) {
  const int64_t number = std::get<CollectiveEvent>(events[post].what).number;
  for (size_t i = post + 1; i < events.size(); ++i) {
    if (const auto* const wait = std::get_if<WaitEvent>(&events[i].what))
      return wait->number == number ? std::optional(i - post - 1) : std::nullopt;
    const auto* const operation = std::get_if<OperationEvent>(&events[i].what);
    if (operation == nullptr || operation->name != "aten::copy_") break;
  }
  return std::nullopt;
}

// What work can become when `parts` divide its rows, and `heads` its weights and heads.
std::vector<Work> parts_of_work(const Work& work, int64_t parts, int64_t heads) {
  if (const auto* const gemm = std::get_if<GemmWork>(&work)) {
    GemmWork columns = *gemm, inner = *gemm;
    columns.rows = inner.rows = part_of(gemm->rows, parts);
    columns.columns = part_of(gemm->columns, heads);
    inner.inner = part_of(gemm->inner, heads);
    return {columns, inner};
  }
  if (const auto* const attention = std::get_if<AttentionWork>(&work)) {
    AttentionWork part = *attention;
    part.heads = part_of(attention->heads, heads);
    part.queries = part_of(attention->queries, parts);
    return {part};
  }
  VectorWork part = std::get<VectorWork>(work);
  part.rows = part_of(part.rows, parts * heads);
  part.others = 0;
  return {part};
}

// A layout with two ranks on the axis, or two by two for 2D tensor parallelism; for a ring, a gather, which
// sends as much.
parallel::ParallelOptions of_two(Axis axis, parallel::DisplacedMode mode) {
  parallel::ParallelOptions wish;
  if (axis == Axis::kTensorInner) wish.tensor_parallel_degree = 2;
  if (axis == Axis::kPipeline) {
    wish.pipefusion_parallel_degree = 2;
    wish.num_pipeline_patch = 2;
  }
  if (axis == Axis::kTensorOuter) {
    wish.tensor_parallel_degree = 4;
    wish.split_scheme = parallel::SplitScheme::k2d;
  }
  if (axis == Axis::kUlysses) wish.ulysses_degree = 2;
  if (axis == Axis::kGather || axis == Axis::kRing) wish.kv_gather_degree = 2;
  if (axis == Axis::kDisplaced) {
    wish.displaced_patch_degree = 2;
    wish.displaced_mode = mode;
  }
  return wish;
}

}  // namespace

LeastTime::LeastTime(const engine::Settings& settings, const engine::Model& model, OperationCosts& costs,
                     const std::vector<Link>& links, bool blocks_are_equal, Sampler sample, Detail detail)
    : settings_(settings),
      model_(model),
      costs_(costs),
      links_(links),
      blocks_are_equal_(blocks_are_equal),
      workload_(engine::workload(settings, model)),
      sample_(std::move(sample)),
      detail_(detail) {}

std::optional<SampledRanks> LeastTime::sample(const parallel::ParallelOptions& wish) const {
  if (!parallel::violations(wish, workload_).empty()) return std::nullopt;
  return sample_(parallel::resolve_layout(wish, workload_, std::nullopt));
}

const LeastTime::Alone& LeastTime::alone() {
  if (alone_) return *alone_;
  parallel::Layout layout;
  layout.stage_blocks = {model_.shape.blocks};
  const SampledRanks ranks = sample_(layout);
  const std::vector<double> times = times_in_step(ranks);
  Alone found;
  const RankTrace& rank = ranks.trace.ranks.front();
  int64_t largest = 0;
  for (const Event& event : rank.events) {
    const auto* const operation = std::get_if<OperationEvent>(&event.what);
    if (operation != nullptr && operation->block >= 0 && event.step != kBeforeSteps)
      largest = std::max(largest, elements_of_output(*operation));
  }
  for (size_t i = 0; i < rank.events.size(); ++i) {
    const Event& event = rank.events[i];
    const auto* const operation = std::get_if<OperationEvent>(&event.what);
    const bool is_of_rows = operation != nullptr && operation->block >= 0 && event.step != kBeforeSteps &&
                            elements_of_output(*operation) * kMostExpansion >= largest;
    for (const MappedWork* const mapped : costs_.operators(rank, i)) {
      found.seconds += costs_.least_seconds(*mapped) / most_share(*mapped) * times[i];
      if (!is_of_rows) continue;
      const auto same = std::find_if(found.of_rows.begin(), found.of_rows.end(),
                                     [&](const auto& each) { return each.first == mapped; });
      if (same == found.of_rows.end()) {
        found.of_rows.emplace_back(mapped, times[i]);
      } else {
        same->second += times[i];
      }
    }
  }
  found.vectors = vectors_of(ranks);
  found.turns = turns_of(settings_, layout);
  found.evaluations = static_cast<double>(ranks.trace.steps);
  found.launches = launches_in_step(ranks);
  parallel::ParallelOptions cfg;
  cfg.use_cfg_parallel = true;
  if (const std::optional<SampledRanks> half = sample(cfg); half && found.launches > 0)
    found.passes_with_cfg = std::min(1.0, launches_in_step(*half) / found.launches);
  if (costs_.machine().launch > 0) {
    // All of a stage, and the same in two patches.
    parallel::ParallelOptions wish;
    wish.pipefusion_parallel_degree = 2;
    wish.num_pipeline_patch = 1;
    const std::optional<SampledRanks> whole = sample(wish);
    wish.num_pipeline_patch = 2;
    if (const std::optional<SampledRanks> cut = sample(wish); whole && cut)
      found.per_patch = std::max(0.0, launches_in_step(*cut) - launches_in_step(*whole)) * found.launches /
                        std::max(1.0, launches_in_step(*whole));
  }
  alone_ = found;
  return *alone_;
}

double LeastTime::most_share(const MappedWork& mapped) const {
  return costs_.machine().efficiency.most(work_kind(mapped.work), mapped.dtype);
}

// The seconds of those operations in an evaluation of the denoiser that work on rows, for one part.
double LeastTime::seconds_of_part(int64_t parts, int64_t heads, bool is_2d) {
  const auto [place, is_new] = parts_.try_emplace({parts, heads, is_2d}, 0);
  if (!is_new) return place->second;
  const auto least_of = [&](const MappedWork& mapped, int64_t divided) {
    double least = std::numeric_limits<double>::infinity();
    for (const Work& work : parts_of_work(mapped.work, parts, divided)) {
      const MappedWork& part = costs_.mapped(work, mapped.dtype);
      least = std::min(least, part.mapping.latency * costs_.machine().efficiency.share(work, mapped.dtype));
    }
    return kLeastTimeMargin * least / most_share(mapped);
  };
  for (const auto& [mapped, count] : alone().of_rows) {
    const auto found = undivided(is_2d).find(mapped);
    const double whole = heads == 1 || found == undivided(is_2d).end() ? 0 : std::min(found->second, count);
    place->second +=
        (whole > 0 ? whole * least_of(*mapped, 1) : 0) + (count - whole) * least_of(*mapped, heads);
  }
  return place->second;
}

// The vector operators of blocks, and how often the first rank runs them in an evaluation.
LeastTime::Counts LeastTime::vectors_of(const SampledRanks& ranks) {
  Counts counts;
  const RankTrace& rank = ranks.trace.ranks.front();
  const std::vector<double> times = times_in_step(ranks);
  for (size_t i = 0; i < rank.events.size(); ++i) {
    const auto* const operation = std::get_if<OperationEvent>(&rank.events[i].what);
    if (operation == nullptr || operation->block < 0 || rank.events[i].step == kBeforeSteps) continue;
    for (const MappedWork* const mapped : costs_.operators(rank, i)) {
      if (std::holds_alternative<VectorWork>(mapped->work)) counts[{mapped, operation->name}] += times[i];
    }
  }
  return counts;
}

// Work that a rank of tensor parallelism does as often as a single device, such as norms of whole tokens:
// recognised because it is the same with two ranks and with four. In blocks of several widths, parts may look
// like other work of these.
const std::map<const MappedWork*, double>& LeastTime::undivided(bool is_2d) {
  const auto [place, is_new] = undivided_.try_emplace(is_2d);
  if (!is_new || !blocks_are_equal_ || is_rough()) return place->second;
  parallel::ParallelOptions two, four;
  two.tensor_parallel_degree = 2;
  four.tensor_parallel_degree = 4;
  if (is_2d) four.split_scheme = parallel::SplitScheme::k2d;
  Counts counts = alone().vectors;
  for (const parallel::ParallelOptions& wish : {two, four}) {
    const std::optional<SampledRanks> ranks = sample(wish);
    if (!ranks) continue;
    const Counts of_rank = vectors_of(*ranks);
    for (auto& [each, count] : counts) {
      const auto found = of_rank.find(each);
      count = found == of_rank.end() ? 0 : std::min(count, found->second);
    }
  }
  for (const auto& [each, count] : counts) place->second[each.first] += count;
  return place->second;
}

const LeastTime::Exchanges& LeastTime::exchanges(Axis axis, DisplacedMode mode) {
  const auto [place, is_new] = exchanges_.try_emplace({axis, mode});
  if (!is_new) return place->second;
  const std::optional<SampledRanks> ranks = sample(of_two(axis, mode));
  if (!ranks) return place->second;
  const std::vector<Event>& events = ranks->trace.ranks.front().events;
  const std::vector<double> times = times_in_step(*ranks);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const auto* const collective = std::get_if<CollectiveEvent>(&events[i].what);
    if (collective == nullptr) continue;
    const std::optional<size_t> copies = copies_until_wait(events, i);
    if (axis == Axis::kDisplaced) {
      // In a typical step, messages travel during it.
      const bool is_steady = events[i].step == steady_step(ranks->trace.traced_steps);
      place->second.all.bytes += is_steady ? static_cast<double>(collective->bytes) : 0;
      continue;
    }
    if (!copies && axis != Axis::kPipeline) continue;
    const bool is_inner = axis == Axis::kTensorOuter && collective->axis == axis_name(Axis::kTensorInner);
    const auto add = [&](Traffic& to) {
      to.bytes += static_cast<double>(collective->bytes) * times[i];
      to.count += times[i];
    };
    add(is_inner ? place->second.inner : place->second.all);
    if (copies == 0) add(place->second.bare);
  }
  return place->second;
}

const Link* LeastTime::link(const parallel::Mesh& mesh, Axis axis) const {
  if (links_.empty() || mesh.sizes()[axis] == 1) return nullptr;
  const std::vector<int64_t> ranks = mesh.group(0, std::span(&axis, 1));
  const bool is_near = is_rough() && axis == Axis::kRing;  // the first hop
  const Link& found = link_between(links_, ranks.front(), is_near ? ranks[1] : ranks.back());
  return found.measured.empty() && found.bandwidth ? &found : nullptr;
}

LeastTime::Messages LeastTime::messages(const parallel::Layout& layout, double turns,
                                        const parallel::Mesh& mesh) {
  Messages all;
  if (!layout.rank_shares.empty()) return all;
  const auto size = [&](Axis axis) { return static_cast<double>(layout.sizes[axis]); };
  const double tokens = size(Axis::kUlysses) * size(Axis::kGather) * size(Axis::kRing);
  const double heads = size(Axis::kTensorInner) * size(Axis::kTensorOuter);
  const double passes = passes_of(layout);
  const double replicas = size(Axis::kCfg) * size(Axis::kData);
  // Adds messages with `bytes` and `number` times those of the traffic.
  const auto add = [&](Axis axis, const Traffic& traffic, double bytes, double count, Cost& cost) {
    const Link* const link = this->link(mesh, axis);
    if (link == nullptr) return;
    const double crowd = axis == Axis::kUlysses ? 1 + link->contention * std::max(size(axis) - 2, 0.0) : 1;
    cost.rows +=
        kLeastTimeMargin * traffic.bytes * bytes * crowd * alone().turns / (*link->bandwidth * replicas);
    cost.patch += kLeastTimeMargin * traffic.count * count * passes * link->latency * turns;
    if (&cost != &all.bare) all.host += traffic.count * count * passes * link->launch;
  };
  const auto wait = [&](Axis axis, double bytes) {
    if (size(axis) == 1) return;
    add(axis, is_rough() ? exchanges(axis).bare : exchanges(axis).all, bytes, 1, all.waiting);
    add(axis, exchanges(axis).bare, bytes, 1, all.bare);
  };
  // With n ranks, relative to the bytes with two: gathers and sums 2 (n - 1) / n, exchanges 4 (n - 1) / n^2,
  // divided by what other methods divide.
  const double rows = tokens * size(Axis::kDisplaced);
  const double inner = size(Axis::kTensorInner), outer = size(Axis::kTensorOuter);
  if (outer == 1) {
    wait(Axis::kTensorInner, 2 * (heads - 1) / heads / rows);
  } else if (is_rough()) {
    add(Axis::kTensorInner, exchanges(Axis::kTensorOuter).bare, 0, 1, all.waiting);  // only their number
  } else {
    // Groups of two kinds alternate; each works on columns that the other kind divides.
    const Exchanges& of_four = exchanges(Axis::kTensorOuter);
    add(Axis::kTensorInner, of_four.inner, 4 * (inner - 1) / (heads * rows), 1, all.waiting);
    add(Axis::kTensorOuter, of_four.all, 4 * (outer - 1) / (heads * rows), 1, all.waiting);
  }
  if (const double n = size(Axis::kUlysses); !layout.dsp)
    wait(Axis::kUlysses, 4 * (n - 1) / (n * tokens * heads));
  wait(Axis::kGather, 2 * (size(Axis::kGather) - 1) / (tokens * heads));
  if (const double n = size(Axis::kRing); n > 1) {
    // If patches keep keys of others, a ring gathers those of the current patches, and merges nothing.
    const double bytes = 2 * (n - 1) * size(Axis::kGather) / (tokens * heads);
    if (layout.patches > 1 && !is_rough()) {
      wait(Axis::kRing, bytes);
    } else {
      add(Axis::kRing, exchanges(Axis::kRing).all, bytes, n - 1, all.ring);
      if (layout.sizes[Axis::kPipeline] == 1)
        all.merges = exchanges(Axis::kRing).all.count * passes * (n - 1) * (kLaunchesOfAttentionPart - 1);
    }
  }
  if (link(mesh, Axis::kPipeline) != nullptr)
    add_hops(mesh, exchanges(Axis::kPipeline).all.bytes / (tokens * heads * replicas), turns, all);
  return all;
}

// Between the first rank of each stage and that of the next stage, which may be nearer than the first and
// last ranks.
void LeastTime::add_hops(const parallel::Mesh& mesh, double of_evaluation, double turns, Messages& all) {
  const double bytes = kLeastTimeMargin * of_evaluation * alone().turns;
  const Axis axis = Axis::kPipeline;
  const std::vector<int64_t> ranks = mesh.group(0, std::span(&axis, 1));
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    const int64_t own = ranks[stage], next = ranks[(stage + 1) % ranks.size()];
    const Link& between = link_between(links_, std::min(own, next), std::max(own, next));
    if (!between.measured.empty() || !between.bandwidth) continue;
    if (stage + 1 == ranks.size()) {  // latents, which are small
      all.latents = between.latency * turns;
      continue;
    }
    all.hand_on.patch += between.latency * turns;
    all.hand_on.rows += bytes / *between.bandwidth;
    all.busiest_hop = std::max(all.busiest_hop, bytes / *between.bandwidth);
  }
}

double LeastTime::passes_of(const parallel::Layout& layout) {
  return layout.sizes[Axis::kCfg] > 1 ? alone().passes_with_cfg : 1;
}

// On the ranks that hold a stage, one after the other, for a step whose rows are divided into this many
// patches.
double LeastTime::computing(const parallel::Layout& layout, double turns, double patches) {
  const double stages = static_cast<double>(layout.sizes[Axis::kPipeline]);
  const double at_best = (stages > 1 ? kLeastTimeMargin : 1) * alone().seconds * alone().turns * stages /
                         static_cast<double>(parallel::Mesh(layout.sizes).world_size());
  return std::max(at_best, patches * of_one_patch(layout, turns, patches));
}

// For the rows of one of this many patches.
double LeastTime::of_one_patch(const parallel::Layout& layout, double turns, double patches) {
  if (!layout.rank_shares.empty()) return 0;
  const auto size = [&](Axis axis) { return static_cast<double>(layout.sizes[axis]); };
  // Pictures are divided unless turns already are.
  const double pictures = std::max(size(Axis::kData) * turns / alone().turns, 1.0);
  const double parts = std::ceil(patches * size(Axis::kUlysses) * size(Axis::kGather) * size(Axis::kRing) *
                                 size(Axis::kDisplaced) * size(Axis::kCfg) * pictures);
  const int64_t inner = layout.sizes[Axis::kTensorInner], outer = layout.sizes[Axis::kTensorOuter];
  return turns * seconds_of_part(static_cast<int64_t>(parts), inner * outer, outer > 1);
}

// The share of blocks in the stage with the most, or the fewest.
double LeastTime::share_of_blocks(const parallel::Layout& layout, bool is_most) const {
  if (!blocks_are_equal_) return is_most ? 1 / static_cast<double>(layout.sizes[Axis::kPipeline]) : 0;
  const auto [least, most] = std::minmax_element(layout.stage_blocks.begin(), layout.stage_blocks.end());
  return static_cast<double>(is_most ? *most : *least) / static_cast<double>(model_.shape.blocks);
}

// The work of the other stages on the first patch before the largest stage can begin, and on the last patch
// after it has finished. Patches are whole rows or frames, so the smallest may be smaller than the mean.
double LeastTime::filling(const parallel::Layout& layout, const Messages& messages, double turns,
                          double patches) {
  const int64_t lines =
      layout.patch_axis == parallel::GridAxis::kRows ? workload_.token_rows : workload_.token_frames;
  const double smallest = static_cast<double>(lines / layout.patches * layout.patches) /
                          static_cast<double>(std::max<int64_t>(lines, 1));
  const double of_patch =
      smallest * (of_one_patch(layout, turns, patches) + messages.waiting.rows / patches) +
      messages.waiting.patch;
  return (1 - share_of_blocks(layout, true)) * of_patch + smallest * messages.hand_on.rows / patches +
         messages.hand_on.patch;
}

// For displaced patches, if a step takes `computing` without the messages that travel during it: keys and
// values go to all other ranks; other messages, such as rows for neighbours, are no less than with two ranks.
// In a warm-up, ranks wait for these messages, and the last step sends nothing.
double LeastTime::of_displaced(const parallel::Layout& layout, double step) {
  const parallel::Displacement& displacement = *layout.displacement;
  const Axis axis = Axis::kDisplaced;
  const Link* const link = this->link(parallel::Mesh(layout.sizes), axis);
  const auto size = [&](Axis of) { return static_cast<double>(layout.sizes[of]); };
  double travelling = 0;
  if (link != nullptr && layout.rank_shares.empty()) {
    const double ranks = size(axis), of_two = blocks_are_equal_ ? 2 * (ranks - 1) / ranks : 1;
    const double others =
        size(Axis::kTensorInner) * size(Axis::kTensorOuter) * size(Axis::kCfg) * size(Axis::kData);
    travelling = kLeastTimeMargin * exchanges(axis, displacement.mode).all.bytes * of_two * alone().turns /
                 (*link->bandwidth * others);
  }
  const double evaluations = alone().evaluations;
  const bool is_synchronous = layout.is_all_warmup || displacement.mode == parallel::DisplacedMode::kFullSync;
  const double warm =
      is_synchronous ? evaluations : std::min(static_cast<double>(displacement.warmup_steps), evaluations);
  const double steady = evaluations - warm;
  return warm * (step + travelling) + std::max(steady * step, (steady - 1) * travelling);
}

double LeastTime::of(const parallel::Layout& layout, double least_computing) {
  const double share = share_of_blocks(layout, true), turns = turns_of(settings_, layout);
  const double patches = layout.is_all_warmup ? 1 : static_cast<double>(layout.patches);
  const Messages messages = this->messages(layout, turns, parallel::Mesh(layout.sizes));
  const auto waiting = [&](double parts) { return messages.waiting.rows + parts * messages.waiting.patch; };
  const auto of_rows = [&](double parts) {
    return std::max(computing(layout, turns, parts), messages.ring.rows + parts * messages.ring.patch) +
           waiting(parts);
  };
  const double evaluations = alone().evaluations;
  const double warm = layout.is_all_warmup ? evaluations : static_cast<double>(layout.warmup_steps);
  const double steady = std::max(evaluations - warm, 0.0);
  // In a warm-up, stages work one after the other.
  double least = warm * (of_rows(1) + messages.hand_on.rows + messages.hand_on.patch + messages.latents);
  if (steady > 0) {
    // The busiest stage computes its share of all patches; a patch passes through all stages before its next
    // step; a stage hands on all patches.
    const double of_stage = of_rows(patches) * share;
    const double of_patch = (std::max(computing(layout, turns, patches), messages.ring.rows) +
                             messages.waiting.rows + messages.hand_on.rows) /
                                patches +
                            messages.waiting.patch + messages.hand_on.patch + messages.latents;
    const double known = turns * least_computing + (messages.bare.rows + patches * messages.bare.patch) *
                                                       share_of_blocks(layout, false);
    least += std::max({steady * of_stage + filling(layout, messages, turns, patches), steady * of_patch,
                       steady * messages.busiest_hop, (steady - 1) * known});
  }
  if (layout.displacement && !is_rough()) least = of_displaced(layout, least / std::max(evaluations, 1.0));
  const double launch = costs_.machine().launch, passes = passes_of(layout);
  const double first = (alone().launches * passes + messages.merges) * launch + messages.host;
  const double further = alone().per_patch * passes * launch + messages.host;
  // The last step sends nothing for a next one.
  const double unsent = steady > 0 ? patches * messages.host : 0;
  const double host = (evaluations * first + steady * (patches - 1) * further - unsent) * turns * share;
  return std::max(least, host);
}

}  // namespace tessera::plan
