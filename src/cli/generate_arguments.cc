#include "cli/generate_arguments.h"

#include <fmt/ranges.h>
#include <net/if.h>

#include "core/error.h"
#include "core/json.h"

namespace tessera::cli {

FieldInfo model_info() {
  return {"model",
          "Folder in diffusers' format, one .safetensors file, or a model that ships: shapes [default], "
          "shapes-xl",
          "Model", "PATH"};
}

FieldInfo variant_info() {
  return {
      "variant",
      "Take files of this variant where the model has them: fp16 takes model.fp16.safetensors [none; fp16 "
      "where there is nothing else]",
      "Model", "NAME"};
}

const Fields<RunOptions>& run_fields() {
  using O = RunOptions;
  const char* const output = "Output";
  static const Fields<O> fields = {
      plain_field(&O::output,
                  {"output", "Where to [out.png, or out.safetensors for latents]", output, "FILE"}),
      plain_field(&O::report, {"report", "Write settings, times and memory as JSON", output, "FILE"}),
      plain_field(&O::trace,
                  {"trace", "Write a timeline of all ranks for Perfetto (ui.perfetto.dev)", output, "FILE"}),
      plain_field(&O::quiet, {"quiet", "No progress on stderr; paths still go to stdout", output}),
      plain_field(&O::model, model_info()),
      plain_field(&O::config,
                  {"config", "Folder of configs and tokenizers, where --model is one .safetensors file",
                   "Model", "FOLDER"}),
      plain_field(&O::variant, variant_info()),
      plain_field(&O::threads, {"threads", "Threads of each rank [1; all cores for a rank alone]", "Machine",
                                "N", 1, 1024})};
  return fields;
}

const Fields<MessageOptions>& message_fields() {
  using O = MessageOptions;
  static const Fields<O> fields = {
      plain_field(&O::timeout,
                  {"timeout", "After how long without a sign of life a rank counts as lost [300]",
                   parallel::kRunGroup, "SECONDS", 0.1, 86400}),
      plain_field(
          &O::interface,
          {"interface", "Network interface between ranks of several hosts [the one towards MASTER_ADDR]",
           parallel::kRunGroup, "NAME"}),
      plain_field(&O::shared_memory,
                  {"shared_memory", "Send messages between ranks of one host through memory [yes]",
                   parallel::kRunGroup},
                  "Send messages between ranks of one host through a network interface [lo]")};
  return fields;
}

std::string write_arguments(const GenerateArguments& arguments) {
  return OrderedJson{{"request", write_fields(engine::request_fields(), arguments.request)},
                     {"parallel", write_fields(parallel::parallel_fields(), arguments.parallel)},
                     {"run", write_fields(run_fields(), arguments.run)}}
      .dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

GenerateArguments read_arguments(const std::string& text) {
  const JsonConfig all(parse_json(text, "request"), "request");
  const auto part = [&](const char* key) { return all.values().value(key, Json()); };
  return {read_fields(engine::request_fields(), part("request")),
          read_fields(parallel::parallel_fields(), part("parallel")),
          read_fields(run_fields(), part("run")),
          {}};
}

std::filesystem::path output_path(const GenerateArguments& arguments) {
  const bool is_image = arguments.request.output_type == engine::OutputType::kImage;
  const std::string extension = is_image ? ".png" : ".safetensors";
  std::filesystem::path path = arguments.run.output.value_or("out" + extension);
  if (path.extension() != extension) {
    usage_error(field("output"), "'{}' must end in {}: {} are written in that format", path.string(),
                extension, is_image ? "pictures" : "latents");
  }
  return path;
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

}  // namespace tessera::cli
