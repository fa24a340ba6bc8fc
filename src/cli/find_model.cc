#include "cli/find_model.h"

#include <cstdlib>

#include "core/error.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> model_folders() {
  std::vector<fs::path> folders;
  const char* variable = std::getenv("TESSERA_MODELS");
  if (variable && *variable) folders.emplace_back(variable);
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (!code) {
    const fs::path above = program.parent_path().parent_path();
    folders.push_back(above / "share" / "tessera" / "models");
    folders.push_back(above / "models");
  }
  return folders;
}

}  // namespace

fs::path find_model(const std::optional<std::string>& name) {
  std::error_code code;
  if (name && (name->empty() || name->find('/') != std::string::npos || fs::exists(*name, code)))
    return *name;
  const std::vector<fs::path> folders = model_folders();
  for (const fs::path& folder : folders) {
    fs::path candidate = folder / name.value_or(kDefaultModel);
    if (fs::exists(candidate / "model_index.json", code)) return candidate;
  }
  if (name) return *name;
  input_error(field("model"), "the model '{}' is not in {}; name a folder, or set TESSERA_MODELS",
              kDefaultModel, fmt::join(std::vector<std::string>(folders.begin(), folders.end()), ", "));
}

ModelFiles find_model_files(const std::optional<std::string>& model,
                            const std::optional<std::string>& config) {
  const fs::path path = model.value_or("");
  if (path.extension() == ".ckpt" || path.extension() == ".pt")
    input_error(path.string(), "of single files only .safetensors can be read");
  if (path.extension() != ".safetensors") {
    if (config) usage_error(field("config"), "is for a {} that is one .safetensors file", field("model"));
    return {find_model(model)};
  }
  if (!config) {
    usage_error(
        field("config"),
        "'{}' holds weights alone: name a folder in diffusers' format with the configs and tokenizers of "
        "its model; weights there are not read",
        path.string());
  }
  return {find_model(config), path};
}

}  // namespace tessera::cli
