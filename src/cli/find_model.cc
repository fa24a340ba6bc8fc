#include "cli/find_model.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "cli/shipped.h"
#include "core/error.h"
#include "core/nearest_word.h"
#include "weights/single_file.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> model_folders() {
  return shipped_folders("models", "TESSERA_MODELS");
}

// Returns the names of the models in these folders.
std::vector<std::string> names_in(const std::vector<fs::path>& folders) {
  std::vector<std::string> names;
  std::error_code code;
  for (const fs::path& folder : folders) {
    for (const fs::directory_entry& each : fs::directory_iterator(folder, code)) {
      if (fs::exists(each.path() / "model_index.json", code))
        names.push_back(each.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

std::vector<fs::path> shipped_models() {
  std::vector<fs::path> models;
  for (const std::string& name : names_in(model_folders())) models.push_back(find_model(name));
  return models;
}

fs::path find_model(const std::optional<std::string>& name) {
  std::error_code code;
  std::string plain = name.value_or(kDefaultModel);
  if (plain.ends_with('/')) plain.pop_back();  // as completion in a shell leaves it
  const bool may_ship = !plain.empty() && plain.find('/') == std::string::npos;
  if (name && (!may_ship || fs::exists(fs::path(*name) / "model_index.json", code))) return *name;
  const std::vector<fs::path> folders = model_folders();
  for (const fs::path& folder : folders) {
    fs::path candidate = folder / plain;
    if (fs::exists(candidate / "model_index.json", code)) return candidate;
  }
  if (name && fs::exists(*name, code)) return *name;  // the reader says what is wrong with it
  if (name) {
    const std::vector<std::string> names = names_in(folders);
    if (const auto nearest = nearest_word(plain, names))
      input_error(*name, "no such folder, and not the name of a shipped model; did you mean {}?", *nearest);
    input_error(*name, "no such folder, and not the name of a shipped model{}{}",
                names.empty() ? "" : "; shipped models: ", fmt::join(names, ", "));
  }
  input_error(field("model"), "the model '{}' is not in {}; name a folder, or set TESSERA_MODELS",
              kDefaultModel, fmt::join(std::vector<std::string>(folders.begin(), folders.end()), ", "));
}

std::optional<fs::path> find_lone_part(const std::optional<std::string>& name) {
  std::error_code code;
  const fs::path path = name.value_or("");
  const fs::path folder = path.filename() == "config.json" ? "." / path.parent_path() : path;
  if (path.empty() || !fs::is_regular_file(folder / "config.json", code) ||
      fs::exists(folder / "model_index.json", code))
    return std::nullopt;
  return folder;
}

ModelFiles find_model_files(const std::optional<std::string>& model,
                            const std::optional<std::string>& config) {
  const fs::path path = model.value_or("");
  if (path.extension() == ".ckpt" || path.extension() == ".pt")
    input_error(path.string(), "only .safetensors can be read as a single file");
  if (path.extension() != ".safetensors") {
    if (config) usage_error(field("config"), "is for a model that is one .safetensors file");
    return {find_model(model)};
  }
  std::error_code code;
  if (!fs::exists(path, code)) input_error(path.string(), "no such file; check the path");
  weights::require_whole_model(weights::SafetensorsFile(path).header(), path.string());
  if (!config) {
    usage_error(
        field("config"),
        "'{}' holds only weights: name a folder in diffusers' format with the configs and tokenizers of "
        "its model; weights there are not read",
        path.string());
  }
  const fs::path folder = find_model(config);
  if (!fs::exists(folder / "model_index.json", code)) {
    input_error(folder.string(), "{}; {} wants a folder in diffusers' format, with configs and tokenizers",
                fs::exists(folder, code) ? "holds no model_index.json" : "no such folder", field("config"));
  }
  return {folder, path};
}

}  // namespace tessera::cli
