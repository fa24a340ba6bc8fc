#include "engine/find_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "engine/shipped.h"
#include "weights/gguf.h"
#include "weights/single_file.h"

namespace tessera::engine {
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
    for (const fs::path& each : list_folder(folder, code)) {
      if (fs::exists(each / "model_index.json", code)) names.push_back(each.filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// Returns the first bytes of a file, and nothing if it is not a file.
std::string beginning_of(const fs::path& path) {
  std::error_code code;
  std::string bytes(9, '\0');
  if (!fs::is_regular_file(path, code)) return "";
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

// The content decides, because a hub's cache names files by their hashes: a safetensors file begins with the
// length of a JSON object, below 2^32, and its opening brace.
bool has_safetensors_header(const std::string& beginning) {
  return beginning.size() == 9 && beginning.ends_with(std::string_view("\0\0\0\0{", 5));
}

// torch.save writes a ZIP archive; before that, it wrote a pickle of protocol 2.
bool is_pickle(const fs::path& path, const std::string& beginning) {
  if (has_safetensors_header(beginning)) return false;
  const fs::path extension = path.extension();
  return extension == ".ckpt" || extension == ".pt" || extension == ".pth" || extension == ".bin" ||
         beginning.starts_with("PK\x03\x04") || beginning.starts_with("\x80\x02");
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
  if (name && type_at(*name) != fs::file_type::not_found)
    return *name;  // the reader reports what is wrong with it
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
  const std::string beginning = beginning_of(path);
  if (is_pickle(path, beginning)) {
    input_error(path.string(),
                "is a pickle (.ckpt, .pt, .bin), and only .safetensors and .gguf can be read as a single "
                "file; convert "
                "it with diffusers: from_single_file(...).save_pretrained(FOLDER)");
  }
  const bool has_name = path.extension() == ".safetensors" || path.extension() == ".gguf";
  if (!has_name && !has_safetensors_header(beginning) && !weights::is_gguf(beginning)) {
    if (config) usage_error(field("config"), "is for a model that is one .safetensors or .gguf file");
    return {find_model(model)};
  }
  if (type_at(path) == fs::file_type::not_found) input_error(path.string(), "no such file; check the path");
  weights::require_whole_model(weights::open_tensor_file(path)->header(), path.string());
  if (!config) {
    usage_error(
        field("config"),
        "'{}' holds only weights: name a folder in diffusers' format with the configs and tokenizers of "
        "its model; weights there are read of parts that the file does not hold",
        path.string());
  }
  const fs::path folder = find_model(config);
  if (type_at(folder / "model_index.json") == fs::file_type::not_found) {
    input_error(folder.string(), "{}; {} wants a folder in diffusers' format, with configs and tokenizers",
                type_at(folder) != fs::file_type::not_found ? "holds no model_index.json" : "no such folder",
                field("config"));
  }
  return {folder, path};
}

}  // namespace tessera::engine
