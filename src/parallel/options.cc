#include "parallel/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace tessera::parallel {
namespace {

constexpr int64_t kLargestDegree = 4096;

Fields<ParallelOptions> make_fields() {
  using O = ParallelOptions;
  Fields<O> fields = {plain_field(
      &O::use_cfg_parallel,
      {"use_cfg_parallel", "Compute the positive and the negative branch of guidance on separate ranks",
       FieldGroup::kDegrees})};
  for (const auto& [name, value, help] : kDegrees)
    fields.push_back(plain_field(value, {name, help, FieldGroup::kDegrees, "N", 1, kLargestDegree}));
  fields.push_back(
      plain_field(&O::attn_layer_num_for_pp,
                  {"attn_layer_num_for_pp", "PipeFusion: number of blocks in each stage [balanced]",
                   FieldGroup::kDegrees, "N ..."}));
  fields.push_back(
      plain_field(&O::rank_shares,
                  {"rank_shares",
                   "How much work each rank gets in relation to the others, for ranks of unequal speed: one "
                   "positive number for each [equal]",
                   FieldGroup::kDegrees, "N ..."}));
  fields.push_back(choice_field<O, std::optional<SplitScheme>, SplitScheme>(
      &O::split_scheme,
      {"split_scheme", "Tensor parallelism: split each weight along one dimension (1d) or both (2d) [1d]",
       FieldGroup::kDegrees, "SCHEME"},
      {{"1d", SplitScheme::k1d}, {"2d", SplitScheme::k2d}}));
  fields.push_back(plain_field(
      &O::nproc,
      {"nproc", "Ranks to start on this host [the product of the degrees]", FieldGroup::kLaunch, "N", 1}));
  fields.push_back(plain_field(
      &O::num_pipeline_patch,
      {"num_pipeline_patch", "PipeFusion: number of patches [one per stage]", FieldGroup::kParallel, "N"}));
  fields.push_back(choice_field<O, std::optional<GridAxis>, GridAxis>(
      &O::pipeline_patch_axis,
      {"pipeline_patch_axis",
       "PipeFusion: patches of rows (h), or of the frames of a video (t) [h where there are enough rows]",
       FieldGroup::kParallel, "AXIS"},
      {{"h", GridAxis::kRows}, {"t", GridAxis::kFrames}}));
  fields.push_back(choice_field<O, std::optional<DisplacedMode>, DisplacedMode>(
      &O::displaced_mode,
      {"displaced_mode",
       "DistriFusion: which exchanged data may be one step stale [corrected_async_gn; sync_gn below 4 rows "
       "per rank at the coarsest scale]",
       FieldGroup::kParallel, "MODE"},
      displaced_modes()));
  fields.push_back(plain_field(&O::warmup_steps, {"warmup_steps",
                                                  "First steps without stale data [1 for PipeFusion, which "
                                                  "runs them on whole images; 4 for DistriFusion]",
                                                  FieldGroup::kParallel, "N", 0}));
  fields.push_back(
      plain_field(&O::text_encoder_parallel,
                  {"text_encoder_parallel", "Split the text encoder over the ranks of a replica [default]",
                   FieldGroup::kParallel},
                  "Load the whole text encoder on each rank"));
  fields.push_back(plain_field(
      &O::vae_parallel,
      {"vae_parallel", "Divide the rows of each image among the ranks of a replica for decoding [default]",
       FieldGroup::kParallel},
      "Decode whole images on one rank"));
  fields.push_back(plain_field(
      &O::dynamic_sequence_parallel,
      {"dynamic_sequence_parallel",
       "Divide frames instead of heads among the Ulysses ranks (DSP), in models whose attention stays "
       "within frames or runs along them [default where there are enough frames]",
       FieldGroup::kParallel},
      "Divide heads in such models too"));
  fields.push_back(plain_field(&O::simulate_ranks, {"simulate_ranks",
                                                    "Compute on one rank what the ranks of these degrees "
                                                    "would, including PipeFusion's stale keys and values",
                                                    FieldGroup::kParallel}));
  return fields;
}

}  // namespace

const Fields<ParallelOptions>& parallel_fields() {
  static const Fields<ParallelOptions> fields = make_fields();
  return fields;
}

bool are_in_range(const ParallelOptions& options) {
  return std::all_of(std::begin(kDegrees), std::end(kDegrees),
                     [&](const Degree& degree) {
                       const int64_t value = options.*degree.value;
                       return value >= 1 && value <= kLargestDegree;
                     }) &&
         std::all_of(options.rank_shares.begin(), options.rank_shares.end(),
                     [](double share) { return std::isfinite(share); }) &&
         options.nproc.value_or(1) >= 1 && options.warmup_steps.value_or(0) >= 0;
}

std::string degrees_text(const ParallelOptions& options) {
  std::vector<std::string> texts;
  if (options.use_cfg_parallel) texts.push_back(field("use_cfg_parallel"));
  for (const Degree& degree : kDegrees) {
    if (options.*degree.value != 1)
      texts.push_back(fmt::format("{} {}", field(degree.name), options.*degree.value));
  }
  if (options.split_scheme == SplitScheme::k2d) texts.push_back(field("split_scheme") + " 2d");
  return fmt::format("{}", fmt::join(texts, " "));
}

}  // namespace tessera::parallel

int64_t tessera::ParallelOptions::degrees() const {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t product = cfg_degree();
  for (const parallel::Degree& degree : parallel::kDegrees) {
    const int64_t value = this->*degree.value;
    if (value > 0 && product > kMost / value) return kMost;
    product *= value;
  }
  return product;
}
