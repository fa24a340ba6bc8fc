#include "cli/models_command.h"

#include <cstdio>

#include "cli/field_options.h"
#include "cli/find_model.h"
#include "cli/report.h"
#include "cli/units.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/model.h"
#include "samplers/sampler.h"
#include "weights/checkpoint.h"

namespace tessera::cli {
namespace {

// A part as model_index.json names it, ["library", "Class"]; no names where a pipeline goes without it.
struct Part {
  std::filesystem::path folder;
  std::string library, class_name;
};

struct WeightFiles {
  bool any = false;     // of weights in the format that is read
  bool others = false;  // in formats that are not (.bin, .ckpt, ...)
};

WeightFiles find_weight_files(const std::filesystem::path& folder) {
  WeightFiles result;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::filesystem::path extension = entry.path().extension();
    result.any |= extension == ".safetensors";
    result.others |= extension == ".bin" || extension == ".msgpack" || extension == ".ckpt";
  }
  return result;
}

// A line on the weights of one part; what is wrong with them is added to `damages`.
std::string describe_weights(const Part& part, const std::string& variant,
                             std::vector<std::string>& damages) {
  const WeightFiles found = find_weight_files(part.folder);
  if (!found.any) return found.others ? "no safetensors (only other weight files)" : "";
  try {
    const weights::Checkpoint checkpoint(
        part.folder,
        part.library == "diffusers" ? weights::Library::kDiffusers : weights::Library::kTransformers,
        variant);
    uint64_t parameters = 0, bytes = 0;
    for (const std::string& key : checkpoint.keys()) {
      const weights::TensorEntry& entry = checkpoint.entry(key);
      uint64_t count = 1;
      for (const int64_t size : entry.shape) count *= static_cast<uint64_t>(size);
      parameters += count;
      bytes += entry.end - entry.begin;
    }
    const size_t files = checkpoint.num_files();
    return fmt::format("{:>9}  {:<5} {:>10}  {}", count_text(parameters),
                       engine::dtype_name(checkpoint.dtype()), bytes_text(bytes),
                       files == 1 ? "1 file" : fmt::format("sharded, {} files", files));
  } catch (const Error& error) {
    damages.push_back(spell(error.message(), option_name));
    return "damaged";
  }
}

void print_part(const std::string& name, const Part& part, const std::string& variant,
                std::vector<std::string>& damages) {
  const bool is_named = !part.class_name.empty();
  std::string state = is_named ? "missing" : "";
  if (std::filesystem::is_directory(part.folder)) state = describe_weights(part, variant, damages);
  if (is_named && engine::is_never_run(name)) state += state.empty() ? "not run" : ", not run";
  fmt::print("  {:<14} {:<28} {}\n", name, is_named ? part.class_name : "-", state);
}

// Why the checkpoint cannot run; empty when it can.
std::string find_obstacle(const std::filesystem::path& folder, const std::string& variant) {
  try {
    const engine::Model model = engine::read_model(folder, std::nullopt, variant);
    engine::Request defaults;
    defaults.prompts = {""};
    const engine::Settings settings = engine::resolve(defaults, model);
    samplers::make_sampler(model.scheduler, std::nullopt, {settings.steps, 1});
    engine::check_weights(model);
    fmt::print("  {}: images of {} x {} by default, {} steps, guidance {}, {} tokens a prompt\n",
               model.family->title, settings.width, settings.height, settings.steps, settings.guidance,
               settings.max_sequence_length);
    return "";
  } catch (const Error& error) {
    return spell(error.message(), option_name);
  }
}

}  // namespace

int run_models(const ModelsArguments& arguments) {
  const std::filesystem::path folder = find_model(arguments.model);
  const JsonConfig index = engine::read_model_index(folder);
  fmt::print("{}: {}\n", folder.string(), index.string("_class_name"));
  const std::string variant = arguments.variant.value_or("");
  std::vector<std::string> damages;
  for (const auto& [name, value] : index.values().items()) {
    if (name.starts_with("_") || !value.is_array()) continue;
    Part part{.folder = folder / name, .library = {}, .class_name = {}};
    if (value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      part.library = value[0].get<std::string>();
      part.class_name = value[1].get<std::string>();
    }
    print_part(name, part, variant, damages);
  }
  const ScopedLogSink sink([](LogLevel, const std::string& message) {
    fmt::print("  warning: {}\n", spell(message, option_name));
  });
  const std::string obstacle = find_obstacle(folder, variant);
  for (const std::string& damage : damages) {
    if (damage != obstacle) fmt::print("  warning: {}\n", damage);
  }
  if (obstacle.empty()) {
    fmt::print("  every weight that is needed is there, in the right shape\n");
    fmt::print("  can run: tessera generate \"PROMPT\" --model {}{}\n", folder.string(),
               variant.empty() ? "" : " --variant " + variant);
    return 0;
  }
  fmt::print("  cannot run: {}\n", obstacle);
  return static_cast<int>(ErrorKind::kInput);
}

}  // namespace tessera::cli
