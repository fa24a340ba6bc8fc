#include "job/arguments.h"

#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace tessera::job {
namespace {

// Reads a struct from an object that also has other fields.
template <typename Struct>
Struct read_part(const Fields<Struct>& fields, const Json& all) {
  Json part = Json::object();
  for (const FieldInfo& info : fields) {
    if (const auto found = all.find(info.name); found != all.end()) part[info.name] = *found;
  }
  return read_fields(fields, part);
}

}  // namespace

FieldInfo model_info() {
  return {"model",
          "Folder in diffusers' format, one .safetensors or .gguf file, or a model that ships: shapes, "
          "shapes-video, shapes-xl [shapes]",
          FieldGroup::kModel, "PATH"};
}

FieldInfo config_info() {
  return {
      "config",
      "Folder of configs and tokenizers, and of parts that it does not hold, for a model that is one file",
      FieldGroup::kModel, "FOLDER"};
}

FieldInfo variant_info() {
  return {"variant",
          "Load the weights of this variant if the model has them: fp16 loads "
          "model.fp16.safetensors [none; fp16 if the model has no other weights]",
          FieldGroup::kModel, "NAME"};
}

FieldInfo threads_info() {
  return {"threads",
          "Threads of each rank [1 if ranks share a host, otherwise the number of cores that other "
          "programs leave free]",
          FieldGroup::kMachine,
          "N",
          1,
          1024};
}

const Fields<RunOptions>& run_fields() {
  using O = RunOptions;
  const FieldGroup output = FieldGroup::kOutput;
  static const Fields<O> fields = {
      plain_field(&O::prompt_file, {"prompt_file", "File with one prompt per line; - reads standard input",
                                    FieldGroup::kPrompt, "FILE"}),
      plain_field(&O::request, {"request",
                                "Run a request again: JSON with the fields of a report's settings, a report, "
                                "or an image, a video or latents "
                                "that tessera wrote (not a GIF); other options replace its values",
                                FieldGroup::kPrompt, "FILE"}),
      plain_field(&O::output,
                  {"output",
                   "Output file: .png, .jpg or .webp; for videos .mp4, .webm, .gif or .png; - for a PNG "
                   "on standard output; %d or %03d in a name stands for the number of the image or "
                   "video, %% for a percent sign [out.png; out.mp4 for a video; out.safetensors for "
                   "latents]",
                   output, "FILE"}),
      plain_field(&O::report,
                  {"report", "Write a JSON report of settings, times and memory", output, "FILE"}),
      plain_field(&O::timeline, {"timeline", "Write a timeline of all ranks for Perfetto (ui.perfetto.dev)",
                                 output, "FILE"}),
      plain_field(&O::record, {"record",
                               "Record each operation and message of all ranks with its time, in the form of "
                               "`tessera trace`, for `tessera analyze`; on CPUs",
                               output, "FILE"}),
      plain_field(&O::quiet, {"quiet", "Print no progress on stderr; paths still go to stdout", output}),
      plain_field(&O::dry_run, {"dry_run",
                                "Only check the request, and print as JSON what would run: settings, files, "
                                "ranks, bytes of weights, and memory",
                                output}),
      plain_field(&O::model, model_info()),
      plain_field(&O::config, config_info()),
      plain_field(&O::variant, variant_info()),
      plain_field(&O::threads, threads_info()),
      plain_field(&O::machine,
                  {"machine",
                   "Machine file, or the name of a machine that ships, by which the run is planned "
                   "(docs/planning.md) [none; if a plan chooses the layout, this host, measured once]",
                   FieldGroup::kMachine, "FILE"}),
      choice_field<O, std::optional<std::string>, std::string>(
          &O::parallel,
          {"parallel",
           "auto: let a plan choose the layout in which all ranks finish the request soonest, "
           "instead of giving degrees",
           FieldGroup::kDegrees, ""},
          {{"auto", "auto"}}),
      plain_field(&O::max_staleness,
                  {"max_staleness",
                   "Allowed staleness of activations from other ranks in a planned layout: none (exact "
                   "results), any, or a number of steps [none]",
                   FieldGroup::kDegrees, "none|any|N"})};
  return fields;
}

const Fields<MessageOptions>& message_fields() {
  using O = MessageOptions;
  static const Fields<O> fields = {
      plain_field(&O::timeout, {"timeout", "Consider a rank lost after this long without a heartbeat [300]",
                                FieldGroup::kLaunch, "SECONDS", 0.1, 86400}),
      plain_field(&O::interface,
                  {"interface", "Network interface for messages between hosts [the one towards MASTER_ADDR]",
                   FieldGroup::kLaunch, "NAME"}),
      plain_field(&O::shared_memory,
                  {"shared_memory", "Send messages between ranks of one host through shared memory [yes]",
                   FieldGroup::kLaunch},
                  "Send messages between ranks of one host through a network interface [lo]")};
  return fields;
}

GenerateArguments make_arguments(Json given) {
  GenerateArguments arguments{.request = read_part(engine::request_fields(), given),
                              .parallel = read_part(parallel::parallel_fields(), given),
                              .run = read_part(run_fields(), given),
                              .messages = read_part(message_fields(), given),
                              .given = {}};
  arguments.given = std::move(given);
  return arguments;
}

std::string write_arguments(const GenerateArguments& arguments) {
  OrderedJson all = write_fields(engine::request_fields(), arguments.request);
  all.update(write_fields(parallel::parallel_fields(), arguments.parallel));
  all.update(write_fields(run_fields(), arguments.run));
  return all.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

GenerateArguments read_arguments(const std::string& text) {
  return make_arguments(JsonConfig(parse_json(text, "request"), "request").values());
}

void require_interface(const std::string& name) {
  if (!name.empty() && ::if_nametoindex(name.c_str()) != 0) return;
  std::vector<std::string> names;
  struct if_nameindex* const all = ::if_nameindex();
  for (const struct if_nameindex* each = all; each && each->if_index != 0; ++each)
    names.emplace_back(each->if_name);
  ::if_freenameindex(all);
  usage_error(field("interface"), "this host has no network interface '{}'; it has {}", name,
              fmt::join(names, ", "));
}

}  // namespace tessera::job
