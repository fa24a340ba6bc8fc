#include "cli/models_command.h"

#include <cstdio>
#include <set>

#include "cli/field_options.h"
#include "cli/find_model.h"
#include "cli/report.h"
#include "cli/units.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/model.h"
#include "samplers/sampler.h"
#include "weights/checkpoint.h"
#include "weights/single_file.h"

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

// Where the weights are.
struct Weights {
  std::string variant;
  std::shared_ptr<weights::SafetensorsFile> single_file;  // holds those of all parts, if it is set
};

std::string describe(const weights::Checkpoint& checkpoint) {
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
}

// A line on the weights of one part; what is wrong with them is added to `damages`.
std::string describe_weights(const Part& part, const Weights& weights, std::vector<std::string>& damages) {
  if (weights.single_file) {
    const auto tensors =
        weights::single_file_part(weights.single_file->header(), part.folder.filename().string());
    return tensors.empty() ? "" : describe(weights::Checkpoint(weights.single_file, tensors));
  }
  const WeightFiles found = find_weight_files(part.folder);
  if (!found.any) return found.others ? "no safetensors (only other weight files)" : "";
  try {
    return describe(weights::Checkpoint(part.folder, weights::library_named(part.library), weights.variant));
  } catch (const Error& error) {
    damages.push_back(spell(error.message(), option_name));
    return "damaged";
  }
}

void print_part(const std::string& name, const Part& part, const Weights& weights,
                std::vector<std::string>& damages) {
  const bool is_named = !part.class_name.empty();
  std::string state = is_named ? "missing" : "";
  if (std::filesystem::is_directory(part.folder)) state = describe_weights(part, weights, damages);
  if (is_named && engine::is_never_run(name)) state += state.empty() ? "not run" : ", not run";
  fmt::print("  {:<14} {:<28} {}\n", name, is_named ? part.class_name : "-", state);
}

// Why the checkpoint cannot run; empty when it can.
std::string find_obstacle(const ModelFiles& files, const std::string& variant) {
  try {
    const engine::Model model = engine::read_model(files.folder, files.single_file, variant);
    engine::Request defaults;
    defaults.prompts = {""};
    const engine::Settings settings = engine::resolve(defaults, model);
    engine::make_sampler(settings, model);
    engine::check_weights(model);
    fmt::print(
        "  {}: {} of {} x {} by default, {} steps, guidance {}, {} tokens a prompt\n", model.family->title,
        model.shape.is_video ? fmt::format("videos of {} frames", settings.frames) : "images", settings.width,
        settings.height, settings.steps, settings.guidance, settings.max_sequence_length);
    return "";
  } catch (const Error& error) {
    return spell(error.message(), option_name);
  }
}

}  // namespace

int run_models(const ModelsArguments& arguments) {
  const ModelFiles files = find_model_files(arguments.model, arguments.config);
  const std::filesystem::path path = files.single_file.value_or(files.folder);
  const JsonConfig index = engine::read_model_index(files.folder);
  Weights weights{.variant = arguments.variant.value_or(""), .single_file = nullptr};
  if (files.single_file) weights.single_file = std::make_shared<weights::SafetensorsFile>(path);
  fmt::print("{}: {}\n", path.string(), index.string("_class_name"));
  std::vector<std::string> damages;
  for (const auto& [name, value] : index.values().items()) {
    if (name.starts_with("_") || !value.is_array()) continue;
    Part part{.folder = files.folder / name, .library = {}, .class_name = {}};
    if (value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      part.library = value[0].get<std::string>();
      part.class_name = value[1].get<std::string>();
    }
    print_part(name, part, weights, damages);
  }
  std::set<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) {
    // Both halves of a part may find the same.
    if (warnings.insert(message).second) fmt::print("  warning: {}\n", spell(message, option_name));
  });
  const std::string obstacle = find_obstacle(files, weights.variant);
  for (const std::string& damage : damages) {
    if (damage != obstacle) fmt::print("  warning: {}\n", damage);
  }
  if (obstacle.empty()) {
    fmt::print("  every weight that is needed is there, in the right shape\n");
    std::string options;
    if (arguments.config) options += fmt::format(" {} {}", option_name("config"), *arguments.config);
    if (arguments.variant) options += fmt::format(" {} {}", option_name("variant"), *arguments.variant);
    fmt::print("  can run: tessera generate \"PROMPT\" --model {}{}\n", path.string(), options);
    return 0;
  }
  fmt::print("  cannot run: {}\n", obstacle);
  return static_cast<int>(ErrorKind::kInput);
}

}  // namespace tessera::cli
