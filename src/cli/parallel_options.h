// The options that spread a run over ranks, in xDiT's names.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "parallel/layout.h"

namespace CLI {
class App;
}

namespace tessera::cli {

// Their texts; values are parsed after CLI11 is done, so that every error has one form.
struct ParallelTexts {
  std::optional<std::string> nproc, data_parallel, ulysses, ring, pipefusion, tensor, split_scheme;
  std::optional<std::string> num_pipeline_patch, attn_layer_num_for_pp, warmup_steps, timeout, interface;
  bool use_cfg_parallel = false, simulate_ranks = false, no_shared_memory = false;
  std::optional<bool> text_encoder_parallel;
};

// How ranks talk to each other. What was left out takes the default of comm::Rendezvous.
struct MessageOptions {
  std::optional<std::chrono::milliseconds> timeout;
  std::optional<std::string> interface;
  bool no_shared_memory = false;
};

void add_degree_options(CLI::App& app, ParallelTexts& texts);
// The number of ranks, PipeFusion's schedule, and how ranks talk: what only a run needs.
void add_run_options(CLI::App& app, ParallelTexts& texts);

// Each throws Error(kUsage) with the option, what is expected and the text.
parallel::ParallelOptions parse_parallel_options(const ParallelTexts& texts);
MessageOptions parse_message_options(const ParallelTexts& texts);

// Throws Error(kUsage) with the interfaces of this host when it has no such one. Hosts may differ in this.
void require_interface(const std::string& name);

// The option that takes a list of numbers. CLI11 would take the prompt behind it for one more: the numbers
// that follow it become one word, "14 14".
bool takes_list(const std::string& option);
// How many of the words from `first` on are numbers of that list.
size_t list_length(const std::vector<std::string>& words, size_t first);

}  // namespace tessera::cli
