#include "cli/commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cli/field_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "engine/find_model.h"
#include "engine/lone_denoiser.h"
#include "engine/model.h"
#include "engine/stated_training.h"
#include "job/report.h"
#include "samplers/sampler.h"
#include "weights/block_format.h"
#include "weights/checkpoint.h"
#include "weights/denoiser_file.h"
#include "weights/single_file.h"

namespace tessera::cli {
namespace {

// A part as model_index.json names it, ["library", "Class"]; both names are empty if a pipeline does without
// it.
struct Part {
  std::filesystem::path folder;
  std::string library, class_name;
};

struct WeightFiles {
  bool any = false;     // whether there are weights in the format that is read
  bool others = false;  // whether there are weights in other formats (.bin, .ckpt, ...)
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
  std::shared_ptr<weights::TensorFile> single_file;  // see models::LoadOptions
};

// What is known about the weights of one part.
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

// The inputs of a denoiser in a step, for one picture and one branch of guidance.
using Inputs = std::vector<std::pair<std::string, std::vector<int64_t>>>;

struct Description {
  std::string path, class_name;
  std::vector<PartRow> parts;
  std::vector<std::string> warnings;
  std::string summary;   // empty if it cannot run
  Inputs inputs;         // with default settings; none if it cannot run
  std::string obstacle;  // empty if it can
};

Held measure(const weights::Checkpoint& checkpoint) {
  Held held{.dtype = engine::dtype_name(at::kFloat), .files = checkpoint.num_files()};
  std::map<std::string, uint64_t> bytes;  // by number format
  for (const std::string& key : checkpoint.keys()) {
    const weights::TensorEntry& entry = checkpoint.entry(key);
    uint64_t count = 1;
    for (const int64_t size : entry.shape) count *= static_cast<uint64_t>(size);
    held.parameters += count;
    held.bytes += entry.end - entry.begin;
    const std::string form = entry.blocks ? std::string(entry.blocks->name) : engine::dtype_name(entry.dtype);
    if (at::isFloatingType(entry.dtype)) bytes[form] += entry.end - entry.begin;
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != bytes.end()) held.dtype = most->first;
  return held;
}

// Fills in the description of a part's weights. Throws Error if they are damaged.
void describe_weights(PartRow& row, const Weights& weights) {
  const Part& part = row.part;
  row.state.clear();
  const std::string name = part.folder.filename().string();
  if (weights.single_file && weights::is_in_single_file(weights.single_file->header(), name)) {
    weights::NamedTensors tensors =
        weights::single_file_part(weights::named_tensors({weights.single_file}), name);
    if (!tensors.empty()) row.held = measure({weights.single_file, std::move(tensors)});
    return;
  }
  const WeightFiles found = find_weight_files(part.folder);
  if (found.any) {
    row.held = measure({part.folder, weights::library_named(part.library), weights.variant});
  } else if (found.others) {
    row.state = "no safetensors (only other weight files)";
  }
}

// Adds to `damages` what is wrong with the part.
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

engine::Request default_request() {
  engine::Request request;
  request.prompts = {""};
  return request;
}

// Also adds to `statistics`.
Inputs inputs_of(const engine::Model& model, const engine::Settings& settings,
                 models::LoadStatistics& statistics) {
  models::LoadOptions options;
  options.placement.dtype = at::kFloat;
  options.placement.device = at::kMeta;
  options.single_file = model.single_file;
  options.variant = model.variant;
  options.may_lack_weights = true;
  const auto denoiser = model.family->load_denoiser(model.folder, options, statistics);
  Inputs inputs = {{"latents", model.shape.latent_sizes(settings.latents, 1)},
                   {"timestep", {1}},
                   {"prompt", {1, settings.max_sequence_length, denoiser->conditioning_width()}}};
  if (denoiser->pooled_width() > 0) inputs.push_back({"pooled prompt", {1, denoiser->pooled_width()}});
  const std::vector<std::string>& own = model.family->own_fields;
  if (std::find(own.begin(), own.end(), "original_size") != own.end()) inputs.push_back({"sizes", {1, 6}});
  if (model.shape.takes_guidance_scale) inputs.push_back({"guidance", {1}});
  for (const auto& [name, value] : settings.video.conditions) inputs.push_back({name, {1}});
  return inputs;
}

// Adds what the model makes, and the inputs of its denoiser. Throws Error if it cannot run.
void check(const engine::ModelFiles& files, const std::string& variant, Description& result) {
  const engine::Model model = engine::read_model(files.folder, files.single_file, variant);
  const engine::Request defaults = default_request();
  const engine::Settings settings = engine::resolve(defaults, model);
  engine::make_sampler(settings, model);
  engine::check_weights(model);
  for (const std::string& each : engine::stated_otherwise(model, defaults)) log_warning("{}", each);
  models::LoadStatistics unused;
  result.inputs = inputs_of(model, settings, unused);
  result.summary =
      fmt::format("{}: {} of {} x {} by default, {}, guidance {}, {} a prompt", model.family->title,
                  settings.frames > 1 ? fmt::format("videos of {} frames", settings.frames) : "images",
                  settings.height, settings.width, counted(settings.steps, "step"), settings.guidance,
                  counted(settings.max_sequence_length, "token"));
}

Description describe(const engine::ModelFiles& files, const std::string& variant) {
  const std::filesystem::path path = files.single_file.value_or(files.folder);
  const JsonConfig index = engine::read_model_index(files.folder);
  Weights weights{.variant = variant, .single_file = nullptr};
  if (files.single_file) weights.single_file = weights::open_tensor_file(path);
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
    // Both halves of a part may give the same warning.
    if (std::find(result.warnings.begin(), result.warnings.end(), text) == result.warnings.end())
      result.warnings.push_back(text);
  };
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warn(spell(message, option_name)); });
  try {
    check(files, variant, result);
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

std::string text_of(const Inputs& inputs) {
  std::vector<std::string> texts;
  for (const auto& [name, sizes] : inputs)
    texts.push_back(fmt::format("{} [{}]", name, fmt::join(sizes, ", ")));
  return fmt::format("{}", fmt::join(texts, ", "));
}

OrderedJson json_of(const Inputs& inputs) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, sizes] : inputs) json[name] = sizes;
  return json;
}

void print(const Description& model, const ModelsArguments& arguments) {
  fmt::print("{}: {}\n", model.path, model.class_name);
  for (const PartRow& row : model.parts) {
    const std::string& class_name = row.part.class_name;
    fmt::print("  {:<14} {:<28} {}\n", row.name, class_name.empty() ? "-" : class_name, text_of(row));
  }
  if (!model.summary.empty())
    fmt::print("  {}\n  inputs of a step: {}\n", model.summary, text_of(model.inputs));
  for (const std::string& warning : model.warnings) fmt::print("  warning: {}\n", warning);
  if (!model.obstacle.empty()) {
    fmt::print("  cannot run: {}\n", model.obstacle);
    return;
  }
  fmt::print("  every weight that is needed exists and has the right shape\n");
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
          {"inputs", json_of(model.inputs)},
          {"parts", std::move(parts)}};
}

void print(const OrderedJson& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

int list_shipped(bool as_json) {
  OrderedJson list = OrderedJson::array();
  for (const std::filesystem::path& folder : engine::shipped_models()) {
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

// Describes a config.json that stands alone, without a model around it. Returns false if `model` is not one.
bool describe_lone_denoiser(const std::optional<std::string>& model, bool as_json) {
  const auto alone = engine::find_lone_part(model);
  if (!alone || std::filesystem::exists(*alone / ".." / "model_index.json")) return false;
  const engine::Model denoiser = engine::read_lone_denoiser(*alone);
  const engine::Settings settings = engine::resolve(default_request(), denoiser);
  models::LoadStatistics statistics;
  const Inputs inputs = inputs_of(denoiser, settings, statistics);
  const uint64_t parameters = statistics.bytes_held / c10::elementSize(at::kFloat);
  const std::string reason = "a run needs the folder of a whole model";
  if (as_json) {
    print(OrderedJson{{"model", *model},
                      {"family", denoiser.family->title},
                      {"can_run", false},
                      {"reason", reason},
                      {"parameters", parameters},
                      {"inputs", json_of(inputs)}});
  } else {
    fmt::print(
        "{}: the denoiser of {}, {} parameters\n  inputs of a step: {}\n  cannot run: {}; tessera trace and "
        "tessera mesh take the config\n",
        *model, denoiser.family->title, count_text(parameters), text_of(inputs), reason);
  }
  return true;
}

}  // namespace

const Fields<ModelsArguments>& models_fields() {
  using M = ModelsArguments;
  static const Fields<M> fields = {plain_field(&M::model, job::model_info()),
                                   plain_field(&M::config, job::config_info()),
                                   plain_field(&M::variant, job::variant_info()),
                                   plain_field(&M::json, {"json", "Print JSON", FieldGroup::kOutput})};
  return fields;
}

int run_models(const ModelsArguments& arguments) {
  if (!arguments.model && !arguments.config && !arguments.variant) return list_shipped(arguments.json);
  if (describe_lone_denoiser(arguments.model, arguments.json)) return static_cast<int>(ErrorKind::kInput);
  const Description model =
      describe(engine::find_model_files(arguments.model, arguments.config), arguments.variant.value_or(""));
  if (arguments.json) {
    print(json_of(model));
  } else {
    print(model, arguments);
  }
  return model.obstacle.empty() ? 0 : static_cast<int>(ErrorKind::kInput);
}

}  // namespace tessera::cli
