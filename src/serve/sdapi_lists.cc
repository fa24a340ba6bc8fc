#include "serve/sdapi_lists.h"

#include <fstream>
#include <map>

#include "core/image.h"
#include "core/text.h"
#include "serve/sdapi_request.h"

namespace tessera::serve {
namespace {

// The sizes in the lines "NAME: N kB" of a file in /proc, in bytes.
std::map<std::string, uint64_t> sizes_in(const char* path) {
  std::map<std::string, uint64_t> sizes;
  std::ifstream file(path);
  std::string name;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    sizes[line.substr(0, colon)] = std::strtoull(line.c_str() + colon + 1, nullptr, 10) * 1024;
  }
  return sizes;
}

// The settings of an infotext: its last line, "Steps: 20, Sampler: Euler, ...".
OrderedJson parameters_of(const std::string& text) {
  OrderedJson parameters = OrderedJson::object();
  const size_t last = text.rfind('\n');
  if (last == std::string::npos) return parameters;
  std::string prompt = text.substr(0, last);
  if (const size_t negative = prompt.find("\nNegative prompt: "); negative != std::string::npos) {
    parameters["Negative prompt"] = prompt.substr(negative + 18);
    prompt.resize(negative);
  }
  parameters["Prompt"] = prompt;
  for (size_t at = last + 1; at < text.size();) {
    const size_t colon = text.find(": ", at);
    if (colon == std::string::npos) break;
    size_t end = colon + 2;
    for (bool is_quoted = false; end < text.size() && (is_quoted || text[end] != ','); ++end) {
      if (text[end] == '"') is_quoted = !is_quoted;
      if (text[end] == '\\') ++end;
    }
    end = std::min(end, text.size());
    parameters[text.substr(at, colon - at)] = text.substr(colon + 2, end - colon - 2);
    at = std::min(end + 2, text.size());
  }
  return parameters;
}

}  // namespace

OrderedJson sd_models(const ModelTraits& model) {
  return OrderedJson::array({{{"title", title_of(model)},
                              {"model_name", model.name},
                              {"hash", nullptr},
                              {"sha256", nullptr},
                              {"filename", model.name},
                              {"config", nullptr}}});
}

OrderedJson sd_options(const ModelTraits& model) {
  return {{"sd_model_checkpoint", title_of(model)},
          {"sd_checkpoint_hash", ""},
          {"sd_vae", "Automatic"},
          {"CLIP_stop_at_last_layers", 1},
          {"samples_format", "png"},
          {"samples_save", false},
          {"show_progress_every_n_steps", 10},
          {"live_previews_enable", true},
          {"live_previews_image_format", "jpeg"},
          {"enable_pnginfo", true},
          {"outdir_txt2img_samples", ""}};
}

void check_sd_options(const Json& wanted, const ModelTraits& model) {
  const OrderedJson have = sd_options(model);
  for (const auto& [name, value] : wanted.items()) {
    if (value.is_null()) continue;
    if (name == "sd_model_checkpoint") {
      if (value.is_string() && is_title(value.get<std::string>(), model)) continue;
      throw ApiError(404, "model_not_found",
                     fmt::format("there is no such model; this server has {}", title_of(model)));
    }
    const auto found = have.find(name);
    if (found != have.end() && Json(*found) == value) continue;
    throw ApiError(422, "unsupported_value",
                   fmt::format("the setting '{}' cannot be changed; override_settings of a request may have "
                               "CLIP_stop_at_last_layers and samples_format",
                               printable(cut_utf8(name, 60))),
                   name);
  }
}

OrderedJson sd_memory() {
  const auto all = sizes_in("/proc/meminfo"), own = sizes_in("/proc/self/status");
  const auto size = [](const auto& sizes, const char* name) {
    const auto found = sizes.find(name);
    return found == sizes.end() ? uint64_t{0} : found->second;
  };
  return {
      {"ram",
       {{"free", size(all, "MemAvailable")}, {"used", size(own, "VmRSS")}, {"total", size(all, "MemTotal")}}},
      {"cuda", {{"error", "unavailable"}}}};
}

OrderedJson png_info(std::string_view png) {
  ImageText texts;
  try {
    texts = decode_png_text(png, "image");
  } catch (const Error& error) {
    throw ApiError(422, "invalid_image", error.what(), "image");
  }
  std::string info;
  OrderedJson items = OrderedJson::object();
  for (const auto& [name, text] : texts) {
    items[name] = text;
    if (name == "parameters") info = text;
  }
  return {{"info", info}, {"items", std::move(items)}, {"parameters", parameters_of(info)}};
}

std::vector<std::pair<std::string, OrderedJson>> sd_lists() {
  const OrderedJson none = OrderedJson::array(), object = OrderedJson::object();
  const OrderedJson upscaler = {{"name", "None"},
                                {"model_name", nullptr},
                                {"model_path", nullptr},
                                {"model_url", nullptr},
                                {"scale", 4}};
  return {{"upscalers", OrderedJson::array({upscaler})},
          {"latent-upscale-modes", OrderedJson::array({{{"name", "None"}}})},
          {"loras", none},
          {"hypernetworks", none},
          {"face-restorers", none},
          {"realesrgan-models", none},
          {"prompt-styles", none},
          {"sd-vae", none},
          {"sd-modules", none},
          {"extensions", none},
          {"script-info", none},
          {"artists", none},
          {"artist-categories", none},
          {"embeddings", {{"loaded", object}, {"skipped", object}}},
          {"scripts", {{"txt2img", none}, {"img2img", none}}},
          {"cmd-flags", {{"api", true}, {"nowebui", true}}}};
}

}  // namespace tessera::serve
