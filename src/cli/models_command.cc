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

struct WeightFiles {
  size_t files = 0;
  bool others = false;  // weights in formats that are not read (.bin, .ckpt, ...)
};

WeightFiles count_weight_files(const std::filesystem::path& folder) {
  WeightFiles result;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::filesystem::path extension = entry.path().extension();
    result.files += extension == ".safetensors" ? 1 : 0;
    result.others |= extension == ".bin" || extension == ".msgpack" || extension == ".ckpt";
  }
  return result;
}

// A line on the weights of one part; what is wrong with them is added to `damages`.
std::string describe_weights(const std::filesystem::path& folder, std::vector<std::string>& damages) {
  const WeightFiles found = count_weight_files(folder);
  if (found.files == 0) return found.others ? "no safetensors (only other weight files)" : "";
  try {
    const weights::Checkpoint checkpoint(folder);
    uint64_t parameters = 0, bytes = 0;
    for (const std::string& key : checkpoint.keys()) {
      const weights::TensorEntry& entry = checkpoint.entry(key);
      uint64_t count = 1;
      for (const int64_t size : entry.shape) count *= static_cast<uint64_t>(size);
      parameters += count;
      bytes += entry.end - entry.begin;
    }
    return fmt::format("{:>9}  {:<5} {:>10}  {}", count_text(parameters),
                       engine::dtype_name(checkpoint.dtype()), bytes_text(bytes),
                       found.files == 1 ? "1 file" : fmt::format("sharded, {} files", found.files));
  } catch (const Error& error) {
    damages.push_back(spell(error.message(), option_name));
    return "damaged";
  }
}

void print_part(const std::filesystem::path& folder, const std::string& name, const Json& part,
                std::vector<std::string>& damages) {
  // ["library", "Class"]; null where a pipeline goes without the part.
  const bool named = part.is_array() && part.size() == 2 && part[1].is_string();
  const std::string type = named ? part[1].get<std::string>() : "-";
  const bool there = std::filesystem::is_directory(folder / name);
  std::string state = there ? describe_weights(folder / name, damages) : named ? "missing" : "";
  if (named && engine::is_never_run(name)) state += state.empty() ? "not run" : ", not run";
  fmt::print("  {:<14} {:<28} {}\n", name, type, state);
}

// Why the checkpoint cannot run; empty when it can.
std::string find_obstacle(const std::filesystem::path& folder) {
  try {
    const engine::Model model = engine::read_model(folder);
    engine::Request defaults;
    defaults.prompts = {""};
    const engine::Settings settings = engine::resolve(defaults, model);
    samplers::make_sampler(model.scheduler, std::nullopt, {settings.steps, 1});
    engine::check_weights(model);
    fmt::print("  {}: pictures of {} x {} by default, {} steps, guidance {}, {} tokens a prompt\n",
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
  std::vector<std::string> damages;
  for (const auto& [name, part] : index.values().items()) {
    if (!name.starts_with("_") && part.is_array()) print_part(folder, name, part, damages);
  }
  const ScopedLogSink sink([](LogLevel, const std::string& message) {
    fmt::print("  warning: {}\n", spell(message, option_name));
  });
  const std::string obstacle = find_obstacle(folder);
  for (const std::string& damage : damages) {
    if (damage != obstacle) fmt::print("  warning: {}\n", damage);
  }
  if (obstacle.empty()) {
    fmt::print("  every weight that is needed is there, in the right shape\n");
    fmt::print("  can run: tessera generate \"PROMPT\" --model {}\n", folder.string());
    return 0;
  }
  fmt::print("  cannot run: {}\n", obstacle);
  return static_cast<int>(ErrorKind::kInput);
}

}  // namespace tessera::cli
