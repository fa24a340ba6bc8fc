#include "parallel/layout_rules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/text.h"

namespace tessera::parallel {
namespace {

class Judge {
 public:
  Judge(const ParallelOptions& options, const Workload& workload) : options_(options), workload_(workload) {}

  void judge_ranks(std::optional<int64_t> world_size) {
    const int64_t ranks = ranks_of(options_, world_size);
    if (world_size && options_.nproc)
      require(*options_.nproc == *world_size, Rule::kLaunched, *options_.nproc, *world_size);
    if (options_.simulate_ranks) {
      require(ranks == 1, Rule::kSimulator, 1, ranks);
    } else {
      const int64_t degrees = options_.degrees();
      require(degrees == ranks, Rule::kRanks, degrees, ranks);
    }
  }

  void judge_degrees() {
    const int64_t data = options_.data_parallel_degree, stages = options_.pipefusion_parallel_degree,
                  tensor = options_.tensor_parallel_degree, displaced = options_.displaced_patch_degree,
                  sequence = options_.sequence_degree();
    const Division division = divide(options_, workload_);
    require(data <= workload_.pictures, Rule::kPictures, data, workload_.pictures);
    require(!options_.use_cfg_parallel || workload_.guided, Rule::kBranches);
    require(workload_.has_streams || stages == 1, Rule::kStreams, stages);
    require(!workload_.has_streams || stages <= workload_.blocks, Rule::kBlocks, stages, workload_.blocks);
    const int64_t of_heads = division.dsp ? tensor : tensor * options_.ulysses_degree;
    require(of_heads <= workload_.heads, Rule::kHeads, of_heads, workload_.heads);
    require(sequence <= division.units, Rule::kSequence, sequence, division.units);
    require(displaced <= division.units, Rule::kDisplacedRows, displaced, division.units);
    require(displaced == 1 || (sequence == 1 && stages == 1), Rule::kDisplacedAlone, displaced);
    require(workload_.has_elementwise_sampler || (sequence * displaced == 1 && stages == 1),
            Rule::kElementwise);
    require(workload_.has_elementwise_guidance || stages == 1, Rule::kGuidance, stages);
    require(options_.split_scheme != SplitScheme::k2d || tensor == 1 || near_square(tensor).first > 1,
            Rule::kSquare, tensor);
  }

  void judge_modes(std::optional<int64_t> world_size) {
    const bool is_displaced = options_.displaced_patch_degree > 1;
    if (options_.dynamic_sequence_parallel) {
      require(options_.ulysses_degree > 1, Rule::kDspDegree);
      require(options_.ulysses_degree == 1 || workload_.axial_attention, Rule::kDspAttention);
    }
    require(!options_.warmup_steps || is_displaced || options_.pipefusion_parallel_degree > 1, Rule::kWarmup);
    require(!options_.displaced_mode || is_displaced, Rule::kDisplacedMode);
    require(!is_displaced || !options_.simulate_ranks, Rule::kDisplacedSimulated);
    require(!options_.split_scheme || options_.tensor_parallel_degree > 1, Rule::kSplitScheme);
    require(!options_.simulate_ranks || options_.degrees() > 1, Rule::kSimulated);
    const int64_t ranks = ranks_of(options_, world_size);
    const bool is_alone = ranks == 1;
    require(!options_.text_encoder_parallel || !is_alone, Rule::kTextEncoder);
    require(!options_.vae_parallel || !is_alone, Rule::kVae);
    const std::vector<double>& shares = options_.rank_shares;
    require(shares.empty() || !is_alone, Rule::kSharesAlone);
    require(shares.empty() || is_alone ||
                (std::ssize(shares) == ranks &&
                 std::all_of(shares.begin(), shares.end(), [](double share) { return share > 0; })),
            Rule::kShares, std::ssize(shares), ranks);
  }

  void judge_pipeline() {
    const std::vector<int64_t>& layers = options_.attn_layer_num_for_pp;
    if (options_.pipefusion_parallel_degree == 1) {
      require(!options_.num_pipeline_patch, Rule::kPatchesAlone);
      require(!options_.pipeline_patch_axis, Rule::kPatchAxisAlone);
      require(layers.empty(), Rule::kStageBlocksAlone);
      return;
    }
    require(options_.pipeline_patch_axis != GridAxis::kFrames || workload_.token_frames > 1,
            Rule::kPatchAxis);
    if (const auto patches = options_.num_pipeline_patch) {
      const int64_t most = divide(options_, workload_).most_patches;
      require(*patches >= 1 && *patches <= most, Rule::kPatches, *patches, most);
    }
    require(layers.empty() || are_all_blocks(layers), Rule::kStageBlocks);
  }

  std::vector<Violation> take() { return std::move(broken_); }

 private:
  void require(bool kept, Rule rule, int64_t wished = 0, int64_t available = 0) {
    if (!kept) broken_.push_back({rule, wished, available});
  }

  bool are_all_blocks(const std::vector<int64_t>& layers) const {
    if (static_cast<int64_t>(layers.size()) != options_.pipefusion_parallel_degree) return false;
    // The number of blocks that remain; numbers that are too large end the sum, which would overflow.
    int64_t left = workload_.blocks;
    return std::all_of(layers.begin(), layers.end(),
                       [&](int64_t n) {
                         const bool fits = n >= 1 && n <= left;
                         left -= fits ? n : 0;
                         return fits;
                       }) &&
           left == 0;
  }

  const ParallelOptions& options_;
  const Workload& workload_;
  std::vector<Violation> broken_;
};

std::string given(const char* name, int64_t degree) {
  return fmt::format("{} {}", field(name), degree);
}

// A product names only the degrees above 1, or the last one if all are 1.
std::string product(std::initializer_list<std::pair<const char*, int64_t>> degrees) {
  std::vector<std::string> factors;
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) factors.push_back(given(name, degree));
  }
  if (factors.empty()) return given(std::rbegin(degrees)->first, 1);
  return fmt::format("{}", fmt::join(factors, " x "));
}

std::string unit_name(const Division& division, const Workload& workload) {
  if (division.rank_axis == GridAxis::kFrames) return "a frame";
  return workload.row_unit == 1 ? "a row of tokens" : "a row of the coarsest scale";
}

std::string describe_heads(const ParallelOptions& options, const Workload& workload) {
  const bool dsp = divide(options, workload).dsp;
  const int64_t ulysses = dsp ? 1 : options.ulysses_degree;
  const std::string degrees = dsp ? given("tensor_parallel_degree", options.tensor_parallel_degree)
                                  : product({{"tensor_parallel_degree", options.tensor_parallel_degree},
                                             {"ulysses_degree", ulysses}});
  return workload.axial_attention && !dsp && options.dynamic_sequence_parallel.value_or(ulysses > 1)
             ? fmt::format("{} needs a head or a frame of latents for each rank, there are {} and {}",
                           degrees, workload.heads, workload.token_frames)
             : fmt::format("{} needs a head for each rank, the model has {}", degrees, workload.heads);
}

std::string describe_ranks(const Violation& violation, const ParallelOptions& options) {
  const auto [rule, wished, available] = violation;
  if (rule == Rule::kLaunched)
    return fmt::format("{} {} but the launcher started {}", field("nproc"), wished,
                       counted(available, "rank"));
  if (rule == Rule::kSimulator)
    return fmt::format("{} is for one rank, but there are {}", field("simulate_ranks"), available);
  const std::string degrees = degrees_text(options);
  return fmt::format("needs {} ({}), but there are {}", counted(wished, "rank"),
                     degrees.empty() ? "no degrees" : degrees, available);
}

std::string describe_degrees(const Violation& violation, const ParallelOptions& options,
                             const Workload& workload) {
  const auto [rule, wished, available] = violation;
  const Division division = divide(options, workload);
  switch (rule) {
    case Rule::kPictures:
      return fmt::format("{} needs as many {}, the request has {}", given("data_parallel_degree", wished),
                         workload.token_frames > 1 ? "videos" : "images", available);
    case Rule::kBranches:
      if (std::isinf(workload.unguided_scale)) {
        return fmt::format("{} needs guidance, and the model is distilled to run without it",
                           field("use_cfg_parallel"));
      }
      return fmt::format("{} needs a guidance scale above {} and a negative branch",
                         field("use_cfg_parallel"), workload.unguided_scale);
    case Rule::kStreams:
      return fmt::format(
          "{}: PipeFusion does not support this model, a U-Net, because its blocks read each other's inner "
          "outputs",
          given("pipefusion_parallel_degree", wished));
    case Rule::kBlocks:
      return fmt::format("{} needs a block for each stage, the model has {}",
                         given("pipefusion_parallel_degree", wished), available);
    case Rule::kHeads:
      return describe_heads(options, workload);
    case Rule::kSequence:
      return fmt::format("{} needs {} for each rank, there are {}",
                         product({{"ring_degree", options.ring_degree},
                                  {"kv_gather_degree", options.kv_gather_degree},
                                  {"ulysses_degree", options.ulysses_degree}}),
                         unit_name(division, workload), available);
    case Rule::kDisplacedRows:
      return fmt::format("{} needs {} for each rank, there are {}", given("displaced_patch_degree", wished),
                         unit_name(division, workload), available);
    case Rule::kDisplacedAlone:
      return fmt::format("{} cannot be combined with {}, {}, {} or {}",
                         given("displaced_patch_degree", wished), field("ulysses_degree"),
                         field("kv_gather_degree"), field("ring_degree"),
                         field("pipefusion_parallel_degree"));
    case Rule::kElementwise:
      return fmt::format(
          "{}, {}, {}, {} and {} divide an image, but the sampler thresholds each image as a whole "
          "(thresholding "
          "with sample_max_value above 1)",
          field("ulysses_degree"), field("kv_gather_degree"), field("ring_degree"),
          field("displaced_patch_degree"), field("pipefusion_parallel_degree"));
    case Rule::kGuidance:
      return fmt::format(
          "{} combines the branches of guidance patch by patch, but {} limits the norm of a whole "
          "image",
          given("pipefusion_parallel_degree", wished), field("cfg_normalization"));
    default:
      return fmt::format("{} 2d needs a {} that is a product (4, 6, 8, 9, ...), not {}",
                         field("split_scheme"), field("tensor_parallel_degree"), wished);
  }
}

std::string describe_modes(const Violation& violation, const ParallelOptions& options) {
  const auto needs = [](const std::string& option, const char* degree) {
    return fmt::format("{} needs {} 2 or more", option, field(degree));
  };
  const auto several = [](const std::string& option) {
    return option + " applies to runs with several ranks only";
  };
  switch (violation.rule) {
    case Rule::kDspDegree:
      return needs(field("dynamic_sequence_parallel", options.dynamic_sequence_parallel.value_or(true)),
                   "ulysses_degree");
    case Rule::kDspAttention:
      return fmt::format("{} is for models whose attention stays within frames or runs along them",
                         field("dynamic_sequence_parallel"));
    case Rule::kWarmup:
      return fmt::format("{} applies to PipeFusion and displaced patches only: it needs {} or {} 2 or more",
                         field("warmup_steps"), field("pipefusion_parallel_degree"),
                         field("displaced_patch_degree"));
    case Rule::kDisplacedMode:
      return needs(field("displaced_mode"), "displaced_patch_degree");
    case Rule::kDisplacedSimulated:
      return fmt::format("{} does not simulate {}", field("simulate_ranks"), field("displaced_patch_degree"));
    case Rule::kSplitScheme:
      return needs(field("split_scheme"), "tensor_parallel_degree") + ", such as 4";
    case Rule::kSimulated:
      return field("simulate_ranks") + " needs the degrees of the ranks to simulate";
    case Rule::kTextEncoder:
      return several(field("text_encoder_parallel", options.text_encoder_parallel.value_or(true)));
    case Rule::kVae:
      return several(field("vae_parallel", options.vae_parallel.value_or(true)));
    case Rule::kSharesAlone:
      return several(field("rank_shares"));
    default:
      return fmt::format("{} {} must be {} positive numbers, one for each rank", field("rank_shares"),
                         fmt::join(options.rank_shares, " "), violation.available);
  }
}

// Names a valid value.
std::string describe_pipeline(const Violation& violation, const ParallelOptions& options,
                              const Workload& workload) {
  const auto alone = [](const char* name) {
    return fmt::format("{} applies to PipeFusion only: it needs {} 2 or more", field(name),
                       field("pipefusion_parallel_degree"));
  };
  const int64_t stages = options.pipefusion_parallel_degree;
  switch (violation.rule) {
    case Rule::kPatchesAlone:
      return alone("num_pipeline_patch");
    case Rule::kPatchAxisAlone:
      return alone("pipeline_patch_axis");
    case Rule::kStageBlocksAlone:
      return alone("attn_layer_num_for_pp");
    case Rule::kPatchAxis:
      return fmt::format("{} t is for videos of several frames", field("pipeline_patch_axis"));
    case Rule::kPatches:
      return fmt::format("{} {} must be from 1 to {}", field("num_pipeline_patch"), violation.wished,
                         violation.available);
    default:
      return fmt::format("{} {} must be {} positive numbers with the sum {}, such as {}",
                         field("attn_layer_num_for_pp"), fmt::join(options.attn_layer_num_for_pp, " "),
                         stages, workload.blocks,
                         fmt::join(balanced_stages(workload, std::min(stages, workload.blocks)), " "));
  }
}

}  // namespace

int64_t ranks_of(const ParallelOptions& options, std::optional<int64_t> world_size) {
  const int64_t needed = options.simulate_ranks ? 1 : options.degrees();
  return world_size.value_or(options.nproc.value_or(needed));
}

std::vector<Violation> violations(const ParallelOptions& options, const Workload& workload,
                                  std::optional<int64_t> world_size) {
  if (!are_in_range(options)) return {{Rule::kRange}};
  Judge judge(options, workload);
  judge.judge_ranks(world_size);
  judge.judge_degrees();
  judge.judge_modes(world_size);
  judge.judge_pipeline();
  return judge.take();
}

std::vector<Violation> degree_violations(const ParallelOptions& options, const Workload& workload) {
  Judge judge(options, workload);
  judge.judge_degrees();
  return judge.take();
}

std::string describe(const Violation& violation, const ParallelOptions& options, const Workload& workload) {
  TESSERA_CHECK(violation.rule != Rule::kRange, "check_fields() describes it");
  if (violation.rule < Rule::kPictures) return describe_ranks(violation, options);
  if (violation.rule <= Rule::kSquare) return describe_degrees(violation, options, workload);
  if (violation.rule <= Rule::kShares) return describe_modes(violation, options);
  return describe_pipeline(violation, options, workload);
}

}  // namespace tessera::parallel
