#include "cli/models_command.h"

#include <algorithm>

#include "cli/field_options.h"
#include "cli/find_model.h"
#include "cli/report.h"
#include "cli/units.h"
#include "core/counted.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "engine/lone_denoiser.h"
#include "engine/model.h"
#include "engine/stated_training.h"
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
  for (const std::filesystem::path& path : list_folder(folder, code)) {
    const std::filesystem::path extension = path.extension();
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

// What is known of the weights of one part.
struct Held {
  uint64_t parameters = 0, bytes = 0;
  std::string dtype;
  size_t files = 0;
};

struct PartRow {
  std::string name;
  Part part;
  std::optional<Held> held;
  std::string state;  // "missing", "damaged", ...
};

struct Description {
  std::string path, class_name;
  std::vector<PartRow> parts;
  std::vector<std::string> warnings;
  std::string summary;   // empty when it cannot run
  std::string obstacle;  // empty when it can
};

Held measure(const weights::Checkpoint& checkpoint) {
  Held held{.dtype = engine::dtype_name(checkpoint.dtype()), .files = checkpoint.num_files()};
  for (const std::string& key : checkpoint.keys()) {
    const weights::TensorEntry& entry = checkpoint.entry(key);
    uint64_t count = 1;
    for (const int64_t size : entry.shape) count *= static_cast<uint64_t>(size);
    held.parameters += count;
    held.bytes += entry.end - entry.begin;
  }
  return held;
}

// Fills in what is said of a part's weights. Throws Error if they are damaged.
void describe_weights(PartRow& row, const Weights& weights) {
  const Part& part = row.part;
  row.state.clear();
  if (weights.single_file) {
    const auto tensors =
        weights::single_file_part(weights.single_file->header(), part.folder.filename().string());
    if (!tensors.empty()) row.held = measure(weights::Checkpoint(weights.single_file, tensors));
    return;
  }
  const WeightFiles found = find_weight_files(part.folder);
  if (found.any) {
    row.held = measure({part.folder, weights::library_named(part.library), weights.variant});
  } else if (found.others) {
    row.state = "no safetensors (only other weight files)";
  }
}

// What is wrong with the part is added to `damages`.
PartRow describe_part(const std::string& name, Part part, const Weights& weights,
                      std::vector<std::string>& damages) {
  const bool is_named = !part.class_name.empty();
  PartRow row{.name = name, .part = std::move(part), .held = {}, .state = is_named ? "missing" : ""};
  try {
    if (type_at(row.part.folder) == std::filesystem::file_type::directory) describe_weights(row, weights);
  } catch (const Error& error) {
    damages.push_back(spell(error.message(), option_name));
    row.state = "damaged";
  }
  if (is_named && engine::is_never_run(name)) row.state += row.state.empty() ? "not run" : ", not run";
  return row;
}

// Returns a line on what the model makes. Throws Error when it cannot run.
std::string check(const ModelFiles& files, const std::string& variant) {
  const engine::Model model = engine::read_model(files.folder, files.single_file, variant);
  engine::Request defaults;
  defaults.prompts = {""};
  const engine::Settings settings = engine::resolve(defaults, model);
  engine::make_sampler(settings, model);
  engine::check_weights(model);
  for (const std::string& each : engine::stated_otherwise(model, defaults)) log_warning("{}", each);
  return fmt::format("{}: {} of {} x {} by default, {}, guidance {}, {} a prompt", model.family->title,
                     model.shape.is_video ? fmt::format("videos of {} frames", settings.frames) : "images",
                     settings.width, settings.height, counted(settings.steps, "step"), settings.guidance,
                     counted(settings.max_sequence_length, "token"));
}

Description describe(const ModelFiles& files, const std::string& variant) {
  const std::filesystem::path path = files.single_file.value_or(files.folder);
  const JsonConfig index = engine::read_model_index(files.folder);
  Weights weights{.variant = variant, .single_file = nullptr};
  if (files.single_file) weights.single_file = std::make_shared<weights::SafetensorsFile>(path);
  Description result;
  result.path = path.string();
  result.class_name = index.string("_class_name");
  std::vector<std::string> damages;
  for (const auto& [name, value] : index.values().items()) {
    if (name.starts_with("_") || !value.is_array()) continue;
    Part part{.folder = files.folder / name, .library = {}, .class_name = {}};
    if (value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      part.library = value[0].get<std::string>();
      part.class_name = value[1].get<std::string>();
    }
    result.parts.push_back(describe_part(name, std::move(part), weights, damages));
  }
  const auto warn = [&](const std::string& text) {
    // Both halves of a part may find the same.
    if (std::find(result.warnings.begin(), result.warnings.end(), text) == result.warnings.end())
      result.warnings.push_back(text);
  };
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warn(spell(message, option_name)); });
  try {
    result.summary = check(files, variant);
  } catch (const Error& error) {
    result.obstacle = spell(error.message(), option_name);
  }
  for (const std::string& damage : damages) {
    if (damage != result.obstacle) warn(damage);
  }
  return result;
}

std::string text_of(const PartRow& row) {
  if (!row.held) return row.state;
  const Held& held = *row.held;
  return fmt::format("{:>9}  {:<5} {:>10}  {}{}{}", count_text(held.parameters), held.dtype,
                     bytes_text(held.bytes),
                     held.files == 1 ? "1 file" : fmt::format("sharded, {} files", held.files),
                     row.state.empty() ? "" : ", ", row.state);
}

void print(const Description& model, const ModelsArguments& arguments) {
  fmt::print("{}: {}\n", model.path, model.class_name);
  for (const PartRow& row : model.parts) {
    const std::string& class_name = row.part.class_name;
    fmt::print("  {:<14} {:<28} {}\n", row.name, class_name.empty() ? "-" : class_name, text_of(row));
  }
  if (!model.summary.empty()) fmt::print("  {}\n", model.summary);
  for (const std::string& warning : model.warnings) fmt::print("  warning: {}\n", warning);
  if (!model.obstacle.empty()) {
    fmt::print("  cannot run: {}\n", model.obstacle);
    return;
  }
  fmt::print("  every weight that is needed is there, in the right shape\n");
  std::string options;
  if (arguments.config) options += fmt::format(" {} {}", option_name("config"), *arguments.config);
  if (arguments.variant) options += fmt::format(" {} {}", option_name("variant"), *arguments.variant);
  fmt::print("  can run: tessera generate \"PROMPT\" --model {}{}\n", model.path, options);
}

OrderedJson json_of(const Description& model) {
  OrderedJson parts = OrderedJson::object();
  for (const PartRow& row : model.parts) {
    OrderedJson part = {{"library", row.part.library}, {"class", row.part.class_name}};
    if (row.part.class_name.empty()) part = {{"library", nullptr}, {"class", nullptr}};
    if (row.held) {
      part["parameters"] = row.held->parameters;
      part["bytes"] = row.held->bytes;
      part["dtype"] = row.held->dtype;
      part["files"] = row.held->files;
    }
    if (!row.state.empty()) part["state"] = row.state;
    parts[row.name] = std::move(part);
  }
  return {{"model", model.path},
          {"class", model.class_name},
          {"can_run", model.obstacle.empty()},
          {"reason", model.obstacle.empty() ? OrderedJson() : OrderedJson(model.obstacle)},
          {"warnings", model.warnings},
          {"parts", std::move(parts)}};
}

void print(const OrderedJson& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

int list_shipped(bool as_json) {
  OrderedJson list = OrderedJson::array();
  for (const std::filesystem::path& folder : shipped_models()) {
    const Description model = describe({folder}, "");
    const std::string name = folder.filename().string();
    list.push_back({{"name", name},
                    {"model", model.path},
                    {"class", model.class_name},
                    {"can_run", model.obstacle.empty()}});
    if (!as_json)
      fmt::print("{:<14} {}\n", name,
                 model.obstacle.empty() ? model.summary : "cannot run: " + model.obstacle);
  }
  if (as_json) print(list);
  if (list.empty())
    input_error(field("model"), "no model ships with this program; name a folder, or set TESSERA_MODELS");
  return 0;
}

// Says what a config.json without a model round it is.
void refuse_lone_denoiser(const std::optional<std::string>& model) {
  const auto alone = find_lone_part(model);
  if (!alone || std::filesystem::exists(*alone / ".." / "model_index.json")) return;
  const engine::Model denoiser = engine::read_lone_denoiser(*alone);
  input_error(
      *model,
      "is the config of a denoiser alone, as {} has; tessera trace and tessera mesh take it, a run wants "
      "the folder of a whole model",
      denoiser.family->title);
}

}  // namespace

int run_models(const ModelsArguments& arguments) {
  if (!arguments.model && !arguments.config && !arguments.variant) return list_shipped(arguments.json);
  refuse_lone_denoiser(arguments.model);
  const Description model =
      describe(find_model_files(arguments.model, arguments.config), arguments.variant.value_or(""));
  if (arguments.json) {
    print(json_of(model));
  } else {
    print(model, arguments);
  }
  return model.obstacle.empty() ? 0 : static_cast<int>(ErrorKind::kInput);
}

}  // namespace tessera::cli
