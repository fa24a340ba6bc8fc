#include "parallel/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kDefaultWarmupSteps = 1, kDefaultDisplacedWarmupSteps = 4;
// In rows per rank at the coarsest scale. With fewer rows, the correction of stale moments is too far off,
// and images turn black (mit-han-lab/distrifuser, issue 7: 8 and 12 rows on 4 ranks).
constexpr int64_t kFewRows = 4;

int64_t cfg_degree(const ParallelOptions& options) {
  return options.use_cfg_parallel ? 2 : 1;
}

int64_t sequence_ranks(const ParallelOptions& options) {
  return options.ring_degree * options.ulysses_degree;
}

// Numbers beyond every video's are refused later on; here they must not overflow.
int64_t requested_patches(const ParallelOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 32;
  return std::clamp<int64_t>(options.num_pipeline_patch.value_or(1), 1, kMost);
}

// How many units can be dealt out along an axis: units of rows, or frames.
int64_t units_of(GridAxis axis, const Workload& workload) {
  return axis == GridAxis::kRows ? (workload.token_rows + workload.row_unit - 1) / workload.row_unit
                                 : workload.token_frames;
}

// Patches are of rows, unless only frames are enough for all ranks and patches, or frames are requested.
GridAxis patch_axis_of(const ParallelOptions& options, const Workload& workload) {
  if (options.pipeline_patch_axis) return *options.pipeline_patch_axis;
  const int64_t needed = sequence_ranks(options) * requested_patches(options);
  return workload.token_rows >= std::min(needed, workload.token_frames) ? GridAxis::kRows : GridAxis::kFrames;
}

// Ranks divide rows, unless only frames are enough for them.
GridAxis rank_axis_of(const ParallelOptions& options, const Workload& workload) {
  const GridAxis patch_axis = patch_axis_of(options, workload);
  const int64_t ranks = sequence_ranks(options);
  const auto per_patch = [&](GridAxis axis) {
    const int64_t patches = axis == patch_axis ? requested_patches(options) : 1;
    return std::max<int64_t>(1, units_of(axis, workload) / patches);
  };
  const int64_t rows = per_patch(GridAxis::kRows);
  return rows >= std::min(ranks, per_patch(GridAxis::kFrames)) ? GridAxis::kRows : GridAxis::kFrames;
}

// Whether Ulysses ranks divide frames, or places, in attention along the other axis. This sends two
// activations where dividing heads sends four, so it is the default where no rank would be left without work.
bool uses_dsp(const ParallelOptions& options, const Workload& workload) {
  if (!workload.axial_attention || options.ulysses_degree == 1) return false;
  const int64_t stages = options.pipefusion_parallel_degree;
  const bool has_patches = stages > 1 && patch_axis_of(options, workload) == GridAxis::kFrames;
  const int64_t patches = has_patches ? std::max<int64_t>(options.num_pipeline_patch.value_or(stages), 1) : 1;
  const bool is_enough = rank_axis_of(options, workload) == GridAxis::kFrames ||
                         workload.token_frames / patches >= options.ulysses_degree;
  return options.dynamic_sequence_parallel.value_or(is_enough);
}

// How many units of a patch can be dealt to ranks.
int64_t lines_of(const ParallelOptions& options, const Workload& workload) {
  return units_of(rank_axis_of(options, workload), workload);
}

std::string given(const char* name, int64_t degree) {
  return fmt::format("{} {}", field(name), degree);
}

// A product names only the degrees that are above 1.
std::string product(const char* first, int64_t a, const char* second, int64_t b) {
  if (a == 1) return given(second, b);
  return b == 1 ? given(first, a) : given(first, a) + " x " + given(second, b);
}

std::optional<std::string> broken_by_heads(const ParallelOptions& options, const Workload& workload) {
  const int64_t tensor = options.tensor_parallel_degree, ulysses = options.ulysses_degree;
  if (uses_dsp(options, workload)) {
    if (tensor <= workload.heads) return std::nullopt;
    return fmt::format("{} needs a head for each rank, the model has {}",
                       given("tensor_parallel_degree", tensor), workload.heads);
  }
  if (tensor * ulysses <= workload.heads) return std::nullopt;
  const std::string degrees = product("tensor_parallel_degree", tensor, "ulysses_degree", ulysses);
  return workload.axial_attention && options.dynamic_sequence_parallel.value_or(ulysses > 1)
             ? fmt::format("{} needs a head or a frame of latents for each rank, there are {} and {}",
                           degrees, workload.heads, workload.token_frames)
             : fmt::format("{} needs a head for each rank, the model has {}", degrees, workload.heads);
}

// The rules that tie degrees to the model and the request. All degrees are at least 1.
std::vector<std::string> broken_by_degrees(const ParallelOptions& options, const Workload& workload) {
  std::vector<std::string> broken;
  const auto require = [&](bool kept, const std::string& rule) {
    if (!kept) broken.push_back(rule);
  };
  const int64_t data = options.data_parallel_degree, stages = options.pipefusion_parallel_degree,
                tensor = options.tensor_parallel_degree, ulysses = options.ulysses_degree,
                ring = options.ring_degree, displaced = options.displaced_patch_degree;
  require(data <= workload.pictures,
          fmt::format("{} needs as many {}, the request has {}", given("data_parallel_degree", data),
                      workload.token_frames > 1 ? "videos" : "images", workload.pictures));
  require(!options.use_cfg_parallel || workload.guided,
          fmt::format("{} needs a guidance scale above 1 and a negative branch", field("use_cfg_parallel")));
  require(workload.has_streams || stages == 1,
          fmt::format("{}: PipeFusion does not support this model, a U-Net, because its blocks read each "
                      "other's inner outputs",
                      given("pipefusion_parallel_degree", stages)));
  require(!workload.has_streams || stages <= workload.blocks,
          fmt::format("{} needs a block for each stage, the model has {}",
                      given("pipefusion_parallel_degree", stages), workload.blocks));
  if (const auto rule = broken_by_heads(options, workload)) broken.push_back(*rule);
  const bool divides_rows = rank_axis_of(options, workload) == GridAxis::kRows;
  const std::string row = !divides_rows            ? "a frame"
                          : workload.row_unit == 1 ? "a row of tokens"
                                                   : "a row of the coarsest scale";
  require(
      ring * ulysses <= lines_of(options, workload),
      fmt::format("{} needs {} for each rank, there are {}",
                  product("ring_degree", ring, "ulysses_degree", ulysses), row, lines_of(options, workload)));
  require(displaced <= lines_of(options, workload),
          fmt::format("{} needs {} for each rank, there are {}", given("displaced_patch_degree", displaced),
                      row, lines_of(options, workload)));
  require(displaced == 1 || (ring * ulysses == 1 && stages == 1),
          fmt::format("{} cannot be combined with {}, {} or {}", given("displaced_patch_degree", displaced),
                      field("ulysses_degree"), field("ring_degree"), field("pipefusion_parallel_degree")));
  require(workload.has_elementwise_sampler || (ring * ulysses * displaced == 1 && stages == 1),
          fmt::format("{}, {}, {} and {} divide an image, but the sampler thresholds each image as a whole "
                      "(thresholding with sample_max_value above 1)",
                      field("ulysses_degree"), field("ring_degree"), field("displaced_patch_degree"),
                      field("pipefusion_parallel_degree")));
  require(options.split_scheme != SplitScheme::k2d || tensor == 1 || near_square(tensor).first > 1,
          fmt::format("{} 2d needs a {} that is a product (4, 6, 8, 9, ...), not {}", field("split_scheme"),
                      field("tensor_parallel_degree"), tensor));
  return broken;
}

// Finds the valid degrees nearest to the requested ones; distance is counted in factors of two.
class Nearest {
 public:
  Nearest(const ParallelOptions& wish, const Workload& workload) : wish_(wish), workload_(workload) {}

  void visit(ParallelOptions candidate) {
    double far = 0;
    if (candidate.split_scheme == SplitScheme::k2d &&
        near_square(candidate.tensor_parallel_degree).first == 1) {
      candidate.split_scheme.reset();
      far = 1;
    }
    if (!broken_by_degrees(candidate, workload_).empty()) return;
    far += distance(cfg_degree(candidate), cfg_degree(wish_));
    for (const Degree& degree : kDegrees) far += distance(candidate.*degree.value, wish_.*degree.value);
    if (far < least_ - 1e-9) {
      least_ = far;
      best_ = candidate;
    }
  }
  const std::optional<ParallelOptions>& best() const { return best_; }

 private:
  static double distance(int64_t a, int64_t b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(std::max<int64_t>(b, 1))));
  }

  const ParallelOptions& wish_;
  const Workload& workload_;
  double least_ = std::numeric_limits<double>::infinity();
  std::optional<ParallelOptions> best_;
};

// An upper bound of a degree in valid settings. Methods that change the image (PipeFusion, displaced patches)
// are only suggested when the wish has them.
int64_t most_of(const Degree& degree, const ParallelOptions& wish, const Workload& workload) {
  using O = ParallelOptions;
  const bool divides_images = workload.has_elementwise_sampler;
  const int64_t lines = divides_images ? std::max(workload.token_rows, workload.token_frames) : 1;
  if (degree.value == &O::data_parallel_degree) return workload.pictures;
  if (degree.value == &O::tensor_parallel_degree) return workload.heads;
  if (degree.value == &O::ulysses_degree)
    return workload.axial_attention ? lines : std::min(workload.heads, lines);
  if (degree.value == &O::ring_degree) return lines;
  if (wish.*degree.value == 1) return 1;
  return degree.value == &O::pipefusion_parallel_degree && divides_images ? workload.blocks : lines;
}

// The nearest valid degrees for exactly `world_size` ranks.
std::optional<ParallelOptions> nearest_degrees(const ParallelOptions& wish, const Workload& workload,
                                               int64_t world_size) {
  Nearest nearest(wish, workload);
  ParallelOptions candidate = wish;
  candidate.nproc.reset();
  // Every way to write world_size as a product of the degrees.
  const auto deal = [&](const auto& self, size_t place, int64_t rest) -> void {
    if (place == std::size(kDegrees)) {
      if (rest == 1) nearest.visit(candidate);
      return;
    }
    const Degree& degree = kDegrees[place];
    for (int64_t value = 1; value <= std::min(rest, most_of(degree, wish, workload)); ++value) {
      if (rest % value != 0) continue;
      candidate.*degree.value = value;
      self(self, place + 1, rest / value);
    }
  };
  for (const bool cfg : {wish.use_cfg_parallel, !wish.use_cfg_parallel}) {
    candidate.use_cfg_parallel = cfg;
    const int64_t rest = world_size / cfg_degree(candidate);
    if (rest * cfg_degree(candidate) == world_size) deal(deal, 0, rest);
  }
  return nearest.best();
}

// The nearest valid degrees with the methods of the wish, where no degree is higher than wished.
std::optional<ParallelOptions> lower_degrees(const ParallelOptions& wish, const Workload& workload) {
  Nearest nearest(wish, workload);
  const auto visit = [&](const ParallelOptions& most) {
    ParallelOptions candidate = most;
    candidate.nproc.reset();
    candidate.use_cfg_parallel &= workload.guided;
    candidate.data_parallel_degree = std::min(candidate.data_parallel_degree, workload.pictures);
    candidate.pipefusion_parallel_degree =
        workload.has_streams && workload.has_elementwise_sampler
            ? std::min(candidate.pipefusion_parallel_degree, workload.blocks)
            : 1;
    const int64_t lines = workload.has_elementwise_sampler ? lines_of(candidate, workload) : 1;
    candidate.displaced_patch_degree = std::min(candidate.displaced_patch_degree, lines);
    const int64_t most_tensor = std::min(candidate.tensor_parallel_degree, workload.heads);
    for (int64_t tensor = 1; tensor <= most_tensor; ++tensor) {
      candidate.tensor_parallel_degree = tensor;
      // Where attention is axial, a rank for each frame may be more than one for each head.
      for (const int64_t bound : {lines, std::min(lines, workload.token_frames)}) {
        candidate.ulysses_degree = std::min(most.ulysses_degree, bound);
        if (!uses_dsp(candidate, workload))
          candidate.ulysses_degree = std::min(candidate.ulysses_degree, workload.heads / tensor);
        candidate.ring_degree = std::min(most.ring_degree, lines / candidate.ulysses_degree);
        nearest.visit(candidate);
      }
    }
  };
  ParallelOptions fresh = wish, displaced = wish;
  fresh.displaced_patch_degree = 1;
  displaced.ring_degree = displaced.ulysses_degree = displaced.pipefusion_parallel_degree = 1;
  for (const ParallelOptions& candidate : {wish, fresh, displaced}) visit(candidate);
  return nearest.best();
}

// Suggests valid degrees: those with the methods of the wish, unless the number of ranks is fixed, and those
// of the largest world of at most `world_size` ranks that has any.
std::string advise(const ParallelOptions& wish, const Workload& workload, int64_t world_size, bool is_fixed) {
  constexpr int64_t kLargestSearched = 4096;
  std::vector<std::string> found;
  const auto add = [&](const ParallelOptions& valid) {
    const std::string degrees = degrees_text(valid);
    const std::string text = fmt::format("{} on {} rank{}", degrees.empty() ? "no degrees" : degrees,
                                         valid.degrees(), valid.degrees() == 1 ? "" : "s");
    if (found.empty() || (found.front() != text && valid.degrees() > 1)) found.push_back(text);
  };
  const auto lower = is_fixed ? std::nullopt : lower_degrees(wish, workload);
  if (lower && lower->degrees() > 1) add(*lower);
  for (int64_t size = std::clamp<int64_t>(world_size, 1, kLargestSearched); size >= 1; --size) {
    if (const auto nearest = nearest_degrees(wish, workload, size)) {
      add(*nearest);
      break;
    }
  }
  return fmt::format("nearest valid: {}", fmt::join(found, ", or "));
}

// The number of blocks of each stage, with as little work as possible on the busiest stage: after an equal
// share, each block goes to the stage with the least work.
std::vector<int64_t> balanced_stages(const Workload& workload, int64_t stages) {
  // The blocks that every stage gets in any case.
  const auto ends = static_cast<int64_t>(std::ceil(std::max(workload.embedding, workload.head)));
  const int64_t common = std::max<int64_t>(workload.blocks / stages - ends, 1);
  std::vector<int64_t> blocks(static_cast<size_t>(stages), common);
  std::vector<double> work(static_cast<size_t>(stages), static_cast<double>(common));
  work.front() += workload.embedding;
  work.back() += workload.head;
  for (int64_t dealt = stages * common; dealt < workload.blocks; ++dealt) {
    const auto least = static_cast<size_t>(std::min_element(work.begin(), work.end()) - work.begin());
    ++blocks[least];
    ++work[least];
  }
  return blocks;
}

// Each patch needs at least one row or frame; if the ranks divide the same axis, it needs one for each rank.
int64_t most_patches(const ParallelOptions& options, const Workload& workload) {
  const GridAxis axis = patch_axis_of(options, workload);
  const int64_t ranks = axis == rank_axis_of(options, workload) ? sequence_ranks(options) : 1;
  return std::max<int64_t>(1, units_of(axis, workload) / ranks);
}

// The rules of PipeFusion's own fields. A broken rule names a valid value.
std::vector<std::string> broken_by_pipeline(const ParallelOptions& options, const Workload& workload) {
  std::vector<std::string> broken;
  const int64_t stages = options.pipefusion_parallel_degree;
  if (stages == 1) {
    const auto need = [&](bool given, const char* name) {
      if (given)
        broken.push_back(fmt::format("{} applies to PipeFusion only: it needs {} 2 or more", field(name),
                                     field("pipefusion_parallel_degree")));
    };
    need(options.num_pipeline_patch.has_value(), "num_pipeline_patch");
    need(options.pipeline_patch_axis.has_value(), "pipeline_patch_axis");
    need(!options.attn_layer_num_for_pp.empty(), "attn_layer_num_for_pp");
    return broken;
  }
  if (options.pipeline_patch_axis == GridAxis::kFrames && workload.token_frames == 1)
    broken.push_back(fmt::format("{} t is for videos of several frames", field("pipeline_patch_axis")));
  if (const auto patches = options.num_pipeline_patch) {
    const int64_t most = most_patches(options, workload);
    if (*patches < 1 || *patches > most) {
      broken.push_back(
          fmt::format("{} {} must be from 1 to {}", field("num_pipeline_patch"), *patches, most));
    }
  }
  const std::vector<int64_t>& layers = options.attn_layer_num_for_pp;
  // What is left of the blocks; numbers that are too large end the sum, which would overflow.
  int64_t left = workload.blocks;
  const bool all_fit = std::all_of(layers.begin(), layers.end(), [&](int64_t n) {
    const bool fits = n >= 1 && n <= left;
    left -= fits ? n : 0;
    return fits;
  });
  if (!layers.empty() && (static_cast<int64_t>(layers.size()) != stages || left != 0 || !all_fit)) {
    broken.push_back(
        fmt::format("{} {} must be {} positive numbers with the sum {}, such as {}",
                    field("attn_layer_num_for_pp"), fmt::join(layers, " "), stages, workload.blocks,
                    fmt::join(balanced_stages(workload, std::min(stages, workload.blocks)), " ")));
  }
  return broken;
}

// The rules of the other options. `ranks` is the number of ranks of the run.
std::vector<std::string> broken_by_modes(const ParallelOptions& options, const Workload& workload,
                                         int64_t ranks) {
  std::vector<std::string> broken;
  const bool is_displaced = options.displaced_patch_degree > 1;
  if (options.dynamic_sequence_parallel && options.ulysses_degree == 1) {
    broken.push_back(fmt::format("{} needs {} 2 or more",
                                 field("dynamic_sequence_parallel", *options.dynamic_sequence_parallel),
                                 field("ulysses_degree")));
  } else if (options.dynamic_sequence_parallel && !workload.axial_attention) {
    broken.push_back(fmt::format("{} is for models whose attention stays within frames or runs along them",
                                 field("dynamic_sequence_parallel")));
  }
  if (options.warmup_steps && !is_displaced && options.pipefusion_parallel_degree == 1) {
    broken.push_back(fmt::format(
        "{} applies to PipeFusion and displaced patches only: it needs {} or {} 2 or more",
        field("warmup_steps"), field("pipefusion_parallel_degree"), field("displaced_patch_degree")));
  }
  if (options.displaced_mode && !is_displaced)
    broken.push_back(
        fmt::format("{} needs {} 2 or more", field("displaced_mode"), field("displaced_patch_degree")));
  if (is_displaced && options.simulate_ranks)
    broken.push_back(
        fmt::format("{} does not simulate {}", field("simulate_ranks"), field("displaced_patch_degree")));
  if (options.split_scheme && options.tensor_parallel_degree == 1)
    broken.push_back(fmt::format("{} needs {} 2 or more, such as 4", field("split_scheme"),
                                 field("tensor_parallel_degree")));
  if (options.simulate_ranks && options.degrees() == 1)
    broken.push_back(field("simulate_ranks") + " needs the degrees of the ranks to simulate");
  const auto several = [&](const char* name, const std::optional<bool>& wish) {
    if (wish && ranks == 1)
      broken.push_back(fmt::format("{} applies to runs with several ranks only", field(name, *wish)));
  };
  several("text_encoder_parallel", options.text_encoder_parallel);
  several("vae_parallel", options.vae_parallel);
  return broken;
}

// The rules of how many ranks there are.
std::vector<std::string> broken_by_ranks(const ParallelOptions& options, int64_t ranks,
                                         std::optional<int64_t> world_size) {
  std::vector<std::string> broken;
  const int64_t needed = options.simulate_ranks ? 1 : options.degrees();
  if (world_size && options.nproc && *options.nproc != *world_size) {
    broken.push_back(
        fmt::format("{} {} but the launcher started {} ranks", field("nproc"), *options.nproc, *world_size));
  }
  if (needed != ranks && options.simulate_ranks) {
    broken.push_back(fmt::format("{} is for one rank, but there are {}", field("simulate_ranks"), ranks));
  } else if (needed != ranks) {
    const std::string degrees = degrees_text(options);
    broken.push_back(fmt::format("needs {} rank{} ({}), but there are {}", needed, needed == 1 ? "" : "s",
                                 degrees.empty() ? "no degrees" : degrees, ranks));
  }
  return broken;
}

// Makes the layout of options that break no rule.
Layout make_layout(const ParallelOptions& options, const Workload& workload) {
  Layout layout;
  const auto [outer, inner] = options.split_scheme == SplitScheme::k2d
                                  ? near_square(options.tensor_parallel_degree)
                                  : std::pair<int64_t, int64_t>{1, options.tensor_parallel_degree};
  layout.sizes[Axis::kTensorInner] = inner;
  layout.sizes[Axis::kTensorOuter] = outer;
  layout.sizes[Axis::kUlysses] = options.ulysses_degree;
  layout.sizes[Axis::kRing] = options.ring_degree;
  layout.sizes[Axis::kDisplaced] = options.displaced_patch_degree;
  layout.sizes[Axis::kPipeline] = options.pipefusion_parallel_degree;
  layout.sizes[Axis::kCfg] = cfg_degree(options);
  layout.sizes[Axis::kData] = options.data_parallel_degree;
  layout.patch_axis = patch_axis_of(options, workload);
  layout.rank_axis = rank_axis_of(options, workload);
  layout.dsp = uses_dsp(options, workload);
  layout.stage_blocks = options.attn_layer_num_for_pp.empty()
                            ? balanced_stages(workload, options.pipefusion_parallel_degree)
                            : options.attn_layer_num_for_pp;
  if (options.pipefusion_parallel_degree > 1) {
    layout.patches = options.num_pipeline_patch.value_or(
        std::min(options.pipefusion_parallel_degree, most_patches(options, workload)));
    layout.warmup_steps = std::min(options.warmup_steps.value_or(kDefaultWarmupSteps), workload.steps);
  }
  if (options.displaced_patch_degree > 1) {
    // In a transformer, only attention sees the rows of other ranks.
    const bool has_few_rows =
        workload.has_group_norms && lines_of(options, workload) / options.displaced_patch_degree < kFewRows;
    layout.displaced_mode_was_changed = has_few_rows && !options.displaced_mode;
    layout.displacement = {.mode = options.displaced_mode.value_or(
                               has_few_rows ? DisplacedMode::kSyncGn : DisplacedMode::kCorrectedAsyncGn),
                           .warmup_steps = options.warmup_steps.value_or(kDefaultDisplacedWarmupSteps)};
  }
  layout.is_all_warmup =
      (layout.displacement ? layout.displacement->warmup_steps : layout.warmup_steps) >= workload.steps;
  layout.text_encoder_parallel = options.text_encoder_parallel.value_or(true);
  layout.vae_parallel = options.vae_parallel.value_or(true);
  if (options.simulate_ranks) {
    layout.sizes = PerAxis{1};
    layout.stage_blocks = {workload.blocks};
  }
  return layout;
}

}  // namespace

Range Layout::stage(int64_t rank) const {
  Range blocks;
  for (int64_t i = 0; i <= rank; ++i) blocks = {blocks.end(), stage_blocks[static_cast<size_t>(i)]};
  return blocks;
}

std::pair<int64_t, int64_t> near_square(int64_t degree) {
  int64_t m = static_cast<int64_t>(std::sqrt(static_cast<double>(degree)));
  while (m > 1 && degree % m != 0) --m;
  return {std::max<int64_t>(m, 1), degree / std::max<int64_t>(m, 1)};
}

Layout resolve_layout(const ParallelOptions& options, const Workload& workload,
                      std::optional<int64_t> world_size) {
  check_fields(parallel_fields(), options);
  const int64_t needed = options.simulate_ranks ? 1 : options.degrees();
  const int64_t ranks = world_size.value_or(options.nproc.value_or(needed));
  std::vector<std::string> broken = broken_by_ranks(options, ranks, world_size);
  const std::vector<std::string> by_degrees = broken_by_degrees(options, workload);
  const bool degrees_broken = !broken.empty() || !by_degrees.empty();
  broken.insert(broken.end(), by_degrees.begin(), by_degrees.end());
  for (const auto& rules : {broken_by_modes(options, workload, ranks), broken_by_pipeline(options, workload)})
    broken.insert(broken.end(), rules.begin(), rules.end());
  if (!broken.empty()) {
    const int64_t wanted = options.simulate_ranks ? options.degrees() : ranks;
    const std::string advice =
        degrees_broken ? "; " + advise(options, workload, wanted, world_size.has_value()) : "";
    usage_error("parallel", "{}{}", fmt::join(broken, "; "), advice);
  }
  return make_layout(options, workload);
}

}  // namespace tessera::parallel
