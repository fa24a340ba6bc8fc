#include "plan/planner/planner.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "engine/observer.h"
#include "parallel/layout_rules.h"
#include "parallel/layout_search.h"

namespace tessera::plan {
namespace {

using parallel::ParallelOptions;

// The fastest layout with some degrees.
struct Costed {
  ParallelOptions degrees;
  size_t first = 0, order = 0;  // Candidate::order of the first of them, and of the fastest
  PlannedLayout planned;
};

struct Candidate {
  ParallelOptions wish;
  parallel::Layout layout;
  double least = 0;  // seconds of the denoiser
  size_t order = 0;  // of equally fast layouts
  bool is_costed = false;

  bool has_more_patches() const { return layout.patches > layout.sizes[parallel::Axis::kPipeline]; }
};

std::vector<int64_t> divisors(int64_t devices) {
  std::vector<int64_t> all;
  for (int64_t count = devices; count >= 1; --count) {
    if (devices % count == 0) all.push_back(count);
  }
  return all;
}

// "cfg 2 x ulysses 4"
std::string name_of(const ParallelOptions& wish, const parallel::Layout& layout) {
  using parallel::Axis;
  static const std::map<Axis, std::string> kNames = {{Axis::kUlysses, "ulysses"},
                                                     {Axis::kGather, "gather"},
                                                     {Axis::kRing, "ring"},
                                                     {Axis::kDisplaced, "displaced"},
                                                     {Axis::kPipeline, "pipefusion"},
                                                     {Axis::kCfg, "cfg"},
                                                     {Axis::kData, "data"}};
  std::vector<std::string> parts;
  for (auto axis = parallel::kAllAxes.rbegin(); axis != parallel::kAllAxes.rend(); ++axis) {
    const auto name = kNames.find(*axis);
    const int64_t size = layout.sizes[*axis];
    if (name == kNames.end() || size == 1) continue;
    parts.push_back(fmt::format("{} {}", *axis == Axis::kUlysses && layout.dsp ? "dsp" : name->second, size));
    if (*axis == Axis::kPipeline && layout.patches > 1)
      parts.back() += fmt::format(" ({} patches)", layout.patches);
  }
  if (wish.tensor_parallel_degree > 1) {
    const int64_t outer = layout.sizes[Axis::kTensorOuter];
    parts.push_back(outer > 1 ? fmt::format("tensor {}x{}", outer, layout.sizes[Axis::kTensorInner])
                              : fmt::format("tensor {}", wish.tensor_parallel_degree));
  }
  return parts.empty() ? "one device" : fmt::format("{}", fmt::join(parts, " x "));
}

bool fits(const Prediction& prediction, const std::optional<double>& memory) {
  return !memory || static_cast<double>(prediction.most_bytes()) <= *memory;
}

constexpr unsigned kMostThreads = 16;

std::vector<std::unique_ptr<Predictor>> make_predictors(const engine::Settings& settings,
                                                        const engine::Model& model, const Machine& machine,
                                                        const std::vector<Link>& links,
                                                        int64_t busy_devices) {
  std::vector<std::unique_ptr<Predictor>> made;
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads);
  while (made.size() < threads)
    made.push_back(std::make_unique<Predictor>(settings, model, machine, links, busy_devices));
  return made;
}

class Planner {
 public:
  Planner(const engine::Settings& settings, const engine::Model& model, const Machine& machine,
          const std::vector<Link>& links, const PlanOptions& options,
          const std::function<bool()>& interrupted)
      : settings_(settings),
        options_(options),
        machine_(machine),
        memory_(options.memory_bytes ? options.memory_bytes : machine.memory_bytes),
        interrupted_(interrupted),
        workload_(engine::workload(settings, model)),
        predictors_(make_predictors(settings, model, machine, links, options.busy_devices)),
        predictor_(*predictors_.front()) {}

  Plan run() {
    std::vector<Candidate> candidates = list();
    plan_.considered = static_cast<int64_t>(candidates.size());
    search(std::move(candidates));
    if (options_.compares) add_obvious();
    return std::move(plan_);
  }

 private:
  void check() const {
    if (interrupted_ && interrupted_()) throw engine::Cancelled();
  }

  // All valid layouts, in the order of how fast they can be.
  std::vector<Candidate> list() {
    std::vector<Candidate> candidates;
    for (const int64_t count : divisors(options_.devices)) {
      if (options_.uses_all && count < options_.devices) break;
      for (ParallelOptions& wish :
           parallel::valid_wishes(workload_, count, {.stale = options_.allows_stale})) {
        wish.rank_shares = shares_of(count);
        add_fixed(wish);
        if (!parallel::violations(wish, workload_).empty()) continue;
        parallel::Layout layout = parallel::resolve_layout(wish, workload_, std::nullopt);
        const double rough = predictor_.rough_least_seconds(layout);
        candidates.push_back({wish, std::move(layout), rough});
      }
    }
    // Equally fast ones are ordered by their rough bounds; those with more patches than stages come last.
    sort(candidates);
    for (size_t i = 0; i < candidates.size(); ++i) {
      candidates[i].order = i + (candidates[i].has_more_patches() ? candidates.size() : 0);
      candidates[i].least = predictor_.least_seconds(candidates[i].layout);
    }
    sort(candidates);
    return candidates;
  }

  static void sort(std::vector<Candidate>& candidates) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.least < b.least; });
  }

  void add_fixed(ParallelOptions& wish) const {
    const ParallelOptions& fixed = options_.fixed;
    const bool has_displaced = wish.displaced_patch_degree > 1;
    if (has_displaced) wish.displaced_mode = fixed.displaced_mode;
    if (has_displaced || wish.pipefusion_parallel_degree > 1) wish.warmup_steps = fixed.warmup_steps;
    wish.text_encoder_parallel = fixed.text_encoder_parallel;
    wish.vae_parallel = fixed.vae_parallel;
  }

  // The shares of the work for devices of different speeds.
  std::vector<double> shares_of(int64_t devices) const {
    std::vector<double> shares;
    for (int64_t rank = 0; rank < devices; ++rank) shares.push_back(machine_.speed(rank));
    const bool are_equal =
        std::all_of(shares.begin(), shares.end(), [&](double share) { return share == shares.front(); });
    return are_equal ? std::vector<double>{} : shares;
  }

  // Layouts are costed in the order of their least times, until these exceed the times of the best; only the
  // best variant of each set of degrees counts, so that ten plans are ten answers. If few of them fit into
  // memory, slower ones are costed too.
  void search(std::vector<Candidate> candidates) {
    // Having more patches than stages divides the same work further: these come after the others, which bound
    // them.
    const auto first_more = std::stable_partition(
        candidates.begin(), candidates.end(), [](const Candidate& each) { return !each.has_more_patches(); });
    const std::span<Candidate> all(candidates);
    const std::span<Candidate> base = all.first(static_cast<size_t>(first_more - candidates.begin()));
    const std::span<Candidate> more = all.subspan(base.size());
    for (size_t wanted = options_.count;; wanted *= 2) {
      cost_below(base, wanted, [&](const Candidate& each) { return each.least; });
      cost_below(more, wanted, [&](const Candidate& each) { return least_of(each); });
      std::sort(costed_.begin(), costed_.end(), [](const Costed& a, const Costed& b) {
        return std::pair(a.planned.prediction.seconds, a.first) <
               std::pair(b.planned.prediction.seconds, b.first);
      });
      choose(wanted);
      const bool are_all =
          wanted >= costed_.size() &&
          std::all_of(base.begin(), base.end(), [](const Candidate& each) { return each.is_costed; });
      if (plan_.best.size() >= options_.count || are_all) return;
    }
  }

  // Costs those that can be among this many, whose denoiser takes at least `least`.
  void cost_below(std::span<Candidate> candidates, size_t wanted,
                  const std::function<double(const Candidate&)>& least) {
    std::vector<Candidate*> batch;
    for (Candidate& each : candidates) {
      const double bar = this->bar(wanted);
      if (each.least > bar) break;  // so are the following ones
      if (each.is_costed) continue;
      if (const double seconds = least(each);
          seconds > bar || seconds + predictor_.least_ends(each.wish, each.layout) > bar)
        continue;
      batch.push_back(&each);
      if (batch.size() == predictors_.size()) cost(std::exchange(batch, {}));
    }
    cost(batch);
  }

  // If the same degrees were costed with fewer patches, more patches compute no less. Infinite if those were
  // too slow already.
  double least_of(const Candidate& each) {
    const ParallelOptions degrees = degrees_of(each.wish);
    const auto found = std::find_if(costed_.begin(), costed_.end(),
                                    [&](const Costed& other) { return other.degrees == degrees; });
    return found == costed_.end()
               ? std::numeric_limits<double>::infinity()
               : predictor_.least_seconds(each.layout, found->planned.prediction.step.computing);
  }

  static ParallelOptions degrees_of(ParallelOptions wish) {
    wish.num_pipeline_patch.reset();
    wish.pipeline_patch_axis.reset();
    wish.split_scheme.reset();
    wish.dynamic_sequence_parallel.reset();
    wish.text_encoder_parallel.reset();
    wish.vae_parallel.reset();
    return wish;
  }

  void cost(const std::vector<Candidate*>& batch) {
    std::vector<Prediction> predictions(batch.size());
    in_threads(batch.size(), [&](Predictor& predictor, size_t i) {
      predictions[i] = predictor.predict_denoiser(batch[i]->layout);
    });
    // Many layouts have the same ends, which a predictor remembers.
    for (size_t i = 0; i < batch.size(); ++i) {
      predictor_.choose_ends(batch[i]->wish, batch[i]->layout, predictions[i]);
      keep(*batch[i], std::move(predictions[i]));
    }
  }

  // Does this much work, in one thread for each predictor.
  void in_threads(size_t count, const std::function<void(Predictor& predictor, size_t i)>& work) {
    std::vector<std::exception_ptr> errors(predictors_.size());
    std::atomic<size_t> next = 0;
    const auto take = [&](size_t thread) {
      try {
        for (size_t i = next++; i < count; i = next++) {
          check();
          work(*predictors_[thread], i);
        }
      } catch (...) {
        errors[thread] = std::current_exception();
        next = count;
      }
    };
    std::vector<std::thread> threads;
    for (size_t thread = 1; thread < std::min(predictors_.size(), count); ++thread)
      threads.emplace_back(take, thread);
    take(0);
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  void keep(Candidate& each, Prediction prediction) {
    ++plan_.costed;
    each.is_costed = true;
    PlannedLayout planned{each.wish, each.layout, std::move(prediction), name_of(each.wish, each.layout)};
    ParallelOptions degrees = degrees_of(each.wish);
    const auto found = std::find_if(costed_.begin(), costed_.end(),
                                    [&](const Costed& other) { return other.degrees == degrees; });
    if (found == costed_.end()) {
      costed_.push_back({std::move(degrees), each.order, each.order, std::move(planned)});
      return;
    }
    found->first = std::min(found->first, each.order);
    if (std::pair(planned.prediction.seconds, each.order) <
        std::pair(found->planned.prediction.seconds, found->order)) {
      found->order = each.order;
      found->planned = std::move(planned);
    }
  }

  // The time that a layout must be able to beat to be among this many.
  double bar(size_t wanted) const {
    if (costed_.size() < wanted) return std::numeric_limits<double>::infinity();
    std::vector<double> seconds;
    for (const Costed& each : costed_) seconds.push_back(each.planned.prediction.seconds);
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(wanted) - 1, seconds.end());
    return seconds[wanted - 1];
  }

  // Chooses the best of the `wanted` fastest that fit.
  void choose(size_t wanted) {
    plan_.best.clear();
    const std::span<Costed> soonest(costed_.data(), std::min(wanted, costed_.size()));
    in_threads(soonest.size(), [&](Predictor& predictor, size_t i) {
      PlannedLayout& planned = soonest[i].planned;
      if (planned.prediction.peak_bytes.empty()) add_memory(predictor, planned);
    });
    for (const Costed& each : soonest) {
      const PlannedLayout& planned = each.planned;
      if (plan_.best.size() == options_.count) break;
      if (fits(planned.prediction, memory_)) {
        plan_.best.push_back(planned);
      } else if (!plan_.least_memory ||
                 planned.prediction.most_bytes() < plan_.least_memory->prediction.most_bytes()) {
        plan_.least_memory = planned;
      }
    }
    std::stable_sort(plan_.best.begin(), plan_.best.end(), [](const auto& left, const auto& right) {
      return left.prediction.seconds < right.prediction.seconds;
    });
  }

  // A picture that one rank decodes alone may take too much of its memory; divided, it takes a part.
  void add_memory(Predictor& predictor, PlannedLayout& planned) const {
    Prediction& prediction = planned.prediction;
    predictor.add_memory(planned.layout, prediction);
    if (fits(prediction, memory_) || planned.layout.vae_parallel || options_.fixed.vae_parallel) return;
    planned.wish.vae_parallel.reset();
    planned.layout.vae_parallel = true;
    prediction.other_decode.reset();
    predictor.add_ends(planned.layout, prediction);
    predictor.add_memory(planned.layout, prediction);
  }

  void add_obvious() {
    std::vector<ParallelOptions> wishes = obvious_wishes();
    for (ParallelOptions& wish : wishes) add_fixed(wish);
    std::erase_if(
        wishes, [&](const ParallelOptions& wish) { return !parallel::violations(wish, workload_).empty(); });
    plan_.obvious.resize(wishes.size());
    in_threads(wishes.size(), [&](Predictor& predictor, size_t i) {
      PlannedLayout& planned = plan_.obvious[i];
      planned.wish = wishes[i];
      planned.layout = parallel::resolve_layout(planned.wish, workload_, std::nullopt);
      planned.prediction = predictor.predict_denoiser(planned.layout);
      predictor.add_memory(planned.layout, planned.prediction);
    });
    for (PlannedLayout& planned : plan_.obvious) {
      predictor_.choose_ends(planned.wish, planned.layout, planned.prediction);
      planned.name = name_of(planned.wish, planned.layout);
    }
  }

  // Each method alone, and with CFG parallelism.
  std::vector<ParallelOptions> obvious_wishes() const {
    std::vector<ParallelOptions> wishes = {{}};
    for (const bool cfg : {false, true}) {
      const int64_t rest = cfg ? options_.devices / 2 : options_.devices;
      if (cfg && (options_.devices % 2 != 0 || !workload_.guided)) break;
      for (const parallel::Degree& degree : parallel::kDegrees) {
        if (degree.value == &ParallelOptions::displaced_patch_degree && !options_.allows_stale) continue;
        ParallelOptions wish;
        wish.use_cfg_parallel = cfg;
        wish.*degree.value = rest;
        wish.rank_shares = shares_of(options_.devices);
        if (!options_.allows_stale && wish.pipefusion_parallel_degree > 1) wish.num_pipeline_patch = 1;
        if (std::find(wishes.begin(), wishes.end(), wish) == wishes.end()) wishes.push_back(wish);
      }
    }
    return wishes;
  }

  const engine::Settings& settings_;
  const PlanOptions& options_;
  const Machine& machine_;
  std::optional<double> memory_;
  const std::function<bool()>& interrupted_;
  parallel::Workload workload_;
  std::vector<std::unique_ptr<Predictor>> predictors_;  // one for each thread
  Predictor& predictor_;
  std::vector<Costed> costed_;
  Plan plan_;
};

}  // namespace

Plan make_plan(const engine::Settings& settings, const engine::Model& model, const Machine& machine,
               const std::vector<Link>& links, const PlanOptions& options,
               const std::function<bool()>& interrupted) {
  return Planner(settings, model, machine, links, options, interrupted).run();
}

PlannedLayout predict_wish(Predictor& predictor, const parallel::ParallelOptions& wish,
                           const parallel::Workload& workload) {
  parallel::Layout layout = parallel::resolve_layout(wish, workload, std::nullopt);
  Prediction prediction = predictor.predict(layout);
  std::string name = name_of(wish, layout);
  return {wish, std::move(layout), std::move(prediction), std::move(name)};
}

std::vector<Link> links_of_machine(const Machine& machine, int64_t devices,
                                   const std::optional<std::string>& kind, std::optional<double> gb_per_s) {
  if (devices == 1 && machine.links.empty()) return {};
  const Link& chosen = find_link(machine, kind);
  std::vector<Link> links;
  for (const Link& link : machine.links) {
    if (&link == &chosen || !links.empty()) links.push_back(link);
  }
  if (gb_per_s) links.front().bandwidth = *gb_per_s * 1e9;
  for (const Link& link : links) {
    if (!link.bandwidth && link.measured.empty() && devices > 1)
      usage_error(field("link_gb_per_s"), "is needed: {} does not give the bandwidth of its link '{}'",
                  machine.where, link.kind);
  }
  return links;
}

}  // namespace tessera::plan
