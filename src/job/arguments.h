// The arguments of `tessera generate`: the request, the layout of ranks, and options of this program only.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/fields.h"
#include "core/json.h"
#include "engine/request.h"
#include "parallel/options.h"

namespace tessera::job {

// The model, the output files and the threads of a run.
struct RunOptions {
  std::optional<std::string> model, config;  // see find_model_files
  std::optional<std::string> variant;        // of the weight files
  std::optional<std::string> output, report, timeline, record;
  std::optional<int> threads;  // of each rank
  // "auto": a plan chooses the layout among those that `max_staleness` allows, using the times of `machine`.
  std::optional<std::string> parallel, machine, max_staleness;
  bool quiet = false, dry_run = false;
  std::optional<std::string> prompt_file, request;  // see with_files()
};
const Fields<RunOptions>& run_fields();
// These describe fields of RunOptions that other commands take too.
FieldInfo model_info();
FieldInfo config_info();
FieldInfo variant_info();
FieldInfo threads_info();

// How ranks exchange messages; each rank has its own values. An option that is left out takes the default of
// comm::Rendezvous.
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
  Json given = Json::object();  // the given fields of all four, by name
  // The file, possibly from somebody else, that named the references of videos, without their folders, and
  // the file that named those of images.
  std::optional<std::string> names_from = {}, images_from = {};
  // The prediction that a plan made of this run before its ranks started, for the report; null without a
  // plan.
  OrderedJson plan = {};
};

// Reads the fields of all four structs from one object. Throws Error(kUsage).
GenerateArguments make_arguments(Json given);

// Write and read everything except the options that each rank sets for itself. Throws Error(kUsage) for
// malformed text.
std::string write_arguments(const GenerateArguments& arguments);
GenerateArguments read_arguments(const std::string& text);

// Throws Error(kUsage), listing this host's interfaces, if none of them has that name. Names may differ
// between hosts.
void require_interface(const std::string& name);

}  // namespace tessera::job
