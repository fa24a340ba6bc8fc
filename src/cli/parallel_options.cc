#include "cli/parallel_options.h"

#include <net/if.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "cli/values.h"
#include "core/error.h"

namespace tessera::cli {
namespace {

constexpr const char* kLayers = "--attn-layer-num-for-pp";

void add(CLI::App& app, const char* names, std::optional<std::string>& value, const char* type,
         const char* description) {
  app.add_option(names, value, description)->type_name(type)->group("Parallel")->take_last();
}

bool is_integer(const std::string& word) {
  const size_t sign = word.starts_with("-") ? 1 : 0;
  return word.size() > sign && std::all_of(word.begin() + static_cast<int64_t>(sign), word.end(),
                                           [](unsigned char c) { return std::isdigit(c); });
}

// "14 14" and "14,14".
std::vector<int64_t> parse_list(const std::string& option, std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) numbers.push_back(parse_integer(option, text.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (numbers.empty()) usage_error(option, "expected a number of blocks for each stage, got '{}'", text);
  return numbers;
}

parallel::SplitScheme parse_split_scheme(const std::string& text) {
  if (text == "1d") return parallel::SplitScheme::k1d;
  if (text == "2d") return parallel::SplitScheme::k2d;
  usage_error("--split-scheme", "expected 1d or 2d, got '{}'", text);
}

std::chrono::milliseconds parse_timeout(const std::string& text) {
  const double seconds = parse_number("--timeout", text);
  constexpr double kLeast = 0.1, kMost = 86400;
  if (!(seconds >= kLeast && seconds <= kMost))
    usage_error("--timeout", "must be from {} to {} seconds, got {}", kLeast, kMost, seconds);
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

}  // namespace

void add_degree_options(CLI::App& app, ParallelTexts& texts) {
  app.add_flag("--use-cfg-parallel", texts.use_cfg_parallel,
               "Positive and negative branch of guidance on ranks of their own")
      ->group("Parallel");
  add(app, "--data-parallel-degree", texts.data_parallel, "N", "Replicas that share the pictures [1]");
  add(app, "--pipefusion-parallel-degree", texts.pipefusion, "N", "PipeFusion: stages of the blocks [1]");
  add(app, kLayers, texts.attn_layer_num_for_pp, "N ...", "PipeFusion: blocks of each stage [balanced]");
  add(app, "--ulysses-degree", texts.ulysses, "N", "Ulysses: ranks that share rows, then heads [1]");
  add(app, "--ring-degree", texts.ring, "N", "Ring Attention: ranks that share rows [1]");
  add(app, "--tensor-parallel-degree", texts.tensor, "N", "Ranks that share the weights of a layer [1]");
  add(app, "--split-scheme", texts.split_scheme, "SCHEME",
      "Weights by their outputs, or also by their inputs: 1d [default] or 2d");
}

void add_run_options(CLI::App& app, ParallelTexts& texts) {
  add(app, "--nproc", texts.nproc, "N", "Ranks to start on this host [the product of the degrees]");
  add(app, "--num-pipeline-patch", texts.num_pipeline_patch, "N", "PipeFusion: patches [one a stage]");
  add(app, "--warmup-steps", texts.warmup_steps, "N", "PipeFusion: first steps on whole pictures [1]");
  const auto add_choice = [&](const char* name, bool choice, const char* description) {
    app.add_flag_callback(
           name, [&texts, choice] { texts.text_encoder_parallel = choice; }, description)
        ->group("Parallel");
  };
  add_choice("--text-encoder-parallel", true, "The text encoder split over the ranks of a picture [default]");
  add_choice("--no-text-encoder-parallel", false, "The text encoder whole on each rank");
  app.add_flag(
         "--simulate-ranks", texts.simulate_ranks,
         "Paint on one rank what the ranks of these degrees would paint, PipeFusion's old keys included")
      ->group("Parallel");
  add(app, "--timeout", texts.timeout, "SECONDS",
      "After how long without a sign of life a rank counts as lost [300]");
  add(app, "--interface", texts.interface, "NAME",
      "Network interface between ranks of several hosts [the one towards MASTER_ADDR]");
  app.add_flag("--no-shared-memory", texts.no_shared_memory,
               "Between ranks of one host too, messages go through a network interface [lo]")
      ->group("Parallel");
}

parallel::ParallelOptions parse_parallel_options(const ParallelTexts& texts) {
  parallel::ParallelOptions options;
  const auto set = [](const char* option, const std::optional<std::string>& text, auto& value) {
    if (text) value = parse_integer(option, *text);
  };
  set("--nproc", texts.nproc, options.nproc);
  options.use_cfg_parallel = texts.use_cfg_parallel;
  options.simulate_ranks = texts.simulate_ranks;
  options.text_encoder_parallel = texts.text_encoder_parallel;
  set("--data-parallel-degree", texts.data_parallel, options.data_parallel_degree);
  set("--pipefusion-parallel-degree", texts.pipefusion, options.pipefusion_parallel_degree);
  set("--ulysses-degree", texts.ulysses, options.ulysses_degree);
  set("--ring-degree", texts.ring, options.ring_degree);
  set("--tensor-parallel-degree", texts.tensor, options.tensor_parallel_degree);
  if (texts.split_scheme) options.split_scheme = parse_split_scheme(*texts.split_scheme);
  set("--num-pipeline-patch", texts.num_pipeline_patch, options.num_pipeline_patch);
  set("--warmup-steps", texts.warmup_steps, options.warmup_steps);
  if (texts.attn_layer_num_for_pp)
    options.attn_layer_num_for_pp = parse_list(kLayers, *texts.attn_layer_num_for_pp);
  return options;
}

MessageOptions parse_message_options(const ParallelTexts& texts) {
  MessageOptions options;
  if (texts.timeout) options.timeout = parse_timeout(*texts.timeout);
  options.interface = texts.interface;
  options.no_shared_memory = texts.no_shared_memory;
  return options;
}

void require_interface(const std::string& name) {
  if (!name.empty() && ::if_nametoindex(name.c_str()) != 0) return;
  std::vector<std::string> names;
  struct if_nameindex* const all = ::if_nameindex();
  for (const struct if_nameindex* each = all; each && each->if_index != 0; ++each)
    names.emplace_back(each->if_name);
  ::if_freenameindex(all);
  usage_error("--interface", "this host has no network interface '{}'; it has {}", name,
              fmt::join(names, ", "));
}

bool takes_list(const std::string& option) {
  return option == kLayers;
}

size_t list_length(const std::vector<std::string>& words, size_t first) {
  size_t count = 0;
  while (first + count < words.size() && is_integer(words[first + count])) ++count;
  return count;
}

}  // namespace tessera::cli
