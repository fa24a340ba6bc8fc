// What `tessera generate` is given: the request, the ranks, and the options of this program alone.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/fields.h"
#include "engine/request.h"
#include "parallel/options.h"

namespace tessera::cli {

// Where a run finds and leaves things.
struct RunOptions {
  std::optional<std::string> model, config;  // see find_model_files
  std::optional<std::string> variant;        // of the files with weights
  std::optional<std::string> output, report, trace;
  std::optional<int> threads;  // of each rank
  bool quiet = false;
};
const Fields<RunOptions>& run_fields();
// Of RunOptions, for other commands.
FieldInfo model_info();
FieldInfo variant_info();

// How ranks talk to each other: of each rank's own. What was left out takes the default of comm::Rendezvous.
struct MessageOptions {
  std::optional<double> timeout;  // seconds
  std::optional<std::string> interface;
  bool shared_memory = true;
};
const Fields<MessageOptions>& message_fields();

struct GenerateArguments {
  engine::Request request;
  parallel::ParallelOptions parallel;
  RunOptions run;
  MessageOptions messages;
};

// All but what is of each rank's own, and back. Throws Error(kUsage) for what is none.
std::string write_arguments(const GenerateArguments& arguments);
GenerateArguments read_arguments(const std::string& text);

// The file of the result. Throws Error(kUsage) when it ends in another format than the result has.
std::filesystem::path output_path(const GenerateArguments& arguments);

// Throws Error(kUsage) with the interfaces of this host when it has no such one. Hosts may differ in this.
void require_interface(const std::string& name);

}  // namespace tessera::cli
