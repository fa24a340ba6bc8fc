#include "parallel/options.h"

#include <fmt/ranges.h>

namespace tessera::parallel {
namespace {

constexpr double kLargestDegree = 4096;  // the product of all degrees does not overflow

Fields<ParallelOptions> make_fields() {
  using O = ParallelOptions;
  Fields<O> fields = {
      plain_field(&O::use_cfg_parallel,
                  {"use_cfg_parallel",
                   "Run the positive and the negative branch of guidance on separate ranks", kDegreeGroup})};
  for (const auto& [name, value, help] : kDegrees)
    fields.push_back(plain_field(value, {name, help, kDegreeGroup, "N", 1, kLargestDegree}));
  fields.push_back(plain_field(
      &O::attn_layer_num_for_pp,
      {"attn_layer_num_for_pp", "PipeFusion: blocks of each stage [balanced]", kDegreeGroup, "N ..."}));
  fields.push_back(choice_field<O, std::optional<SplitScheme>, SplitScheme>(
      &O::split_scheme,
      {"split_scheme", "Split weights by their outputs (1d [default]) or also by their inputs (2d)",
       kDegreeGroup, "SCHEME"},
      {{"1d", SplitScheme::k1d}, {"2d", SplitScheme::k2d}}));
  fields.push_back(plain_field(
      &O::nproc, {"nproc", "Ranks to start on this host [the product of the degrees]", kRunGroup, "N", 1}));
  fields.push_back(plain_field(
      &O::num_pipeline_patch, {"num_pipeline_patch", "PipeFusion: patches [one per stage]", kRunGroup, "N"}));
  fields.push_back(choice_field<O, std::optional<DisplacedMode>, DisplacedMode>(
      &O::displaced_mode,
      {"displaced_mode",
       "Displaced patches: what is stale [corrected_async_gn; sync_gn where few rows make that fail]",
       kRunGroup, "MODE"},
      displaced_modes()));
  fields.push_back(plain_field(&O::warmup_steps, {"warmup_steps",
                                                  "First steps without stale data: on whole images "
                                                  "(PipeFusion [1]), synchronous (displaced patches [4])",
                                                  kRunGroup, "N", 0}));
  fields.push_back(plain_field(
      &O::text_encoder_parallel,
      {"text_encoder_parallel", "Split the text encoder over the ranks of an image [default]", kRunGroup},
      "Each rank has the whole text encoder"));
  fields.push_back(plain_field(
      &O::vae_parallel,
      {"vae_parallel", "Let all ranks of an image decode it, each some of its rows [default]", kRunGroup},
      "One rank decodes the whole image"));
  fields.push_back(plain_field(
      &O::simulate_ranks,
      {"simulate_ranks",
       "Compute on one rank what the ranks of these degrees would, PipeFusion's stale keys included",
       kRunGroup}));
  return fields;
}

}  // namespace

const Fields<ParallelOptions>& parallel_fields() {
  static const Fields<ParallelOptions> fields = make_fields();
  return fields;
}

int64_t ParallelOptions::degrees() const {
  int64_t product = use_cfg_parallel ? 2 : 1;
  for (const Degree& degree : kDegrees) product *= this->*degree.value;
  return product;
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
