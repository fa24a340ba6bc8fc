#include "job/request_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "engine/find_model.h"
#include "launch/streams.h"
#include "media/file_text.h"
#include "media/source.h"
#include "media/suffix.h"
#include "plan/trace.h"
#include "weights/safetensors.h"

namespace tessera::job {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 26;
constexpr const char* kStandardInput = "standard input";

// Editors on Windows write a byte order mark before a text in UTF-8.
std::string_view without_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.substr(text.starts_with(kMark) ? kMark.size() : 0);
}

Json read_prompts(const std::string& path) {
  const std::string text = read_file_or_stream(path, kMostBytes), where = path == "-" ? kStandardInput : path;
  std::string_view rest = without_mark(text);
  Json prompts = Json::array();
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const auto position = find_invalid_utf8(line)) {
      input_error(where, "line {} is not valid UTF-8 (byte {}); save the file in that encoding", number,
                  *position);
    }
    if (line.find_first_not_of(" \t") != std::string_view::npos) prompts.push_back(line);
  }
  if (prompts.empty()) input_error(where, "holds no prompt; write one per line");
  return prompts;
}

// These fields of a record follow from the others.
constexpr std::array kDerived = {"model_class", "scheduler_class", "model_height", "model_width",
                                 "version",     "parallel",        "image_index"};

// Returns which of the images of one seed the file is. Older files store it under a name that is now a field
// of a request.
std::optional<int64_t> image_index(const Json& record) {
  for (const char* name : {"image_index", "image"}) {
    if (const Json index = record.value(name, Json()); index.is_number_integer()) return index.get<int64_t>();
  }
  return std::nullopt;
}

// Returns the settings in an image or a video, or nothing for another kind of file.
std::optional<std::string> embedded_settings(const media::Source& source, const std::string& path) {
  const auto found = media::read_file_text(source, path);
  if (!found) return std::nullopt;
  if (!found->may_have_settings)
    input_error(path, "a {} holds no settings; give the report of its run, or a request in JSON",
                found->kind);
  if (!found->settings)
    input_error(path, "holds no settings; give a file that this program wrote, or a request in JSON");
  return found->settings;
}

std::string settings_of_latents(const std::string& path) {
  const weights::SafetensorsFile file(path);
  const auto found = file.header().metadata.find("tessera");
  if (found == file.header().metadata.end())
    input_error(path, "holds no settings; give a file that this program wrote, or a request in JSON");
  return found->second;
}

// Returns the settings in a file: a request, a report, an image, a video or latents.
Json read_record(const std::string& path) {
  const auto settings_from = [&](const std::string& json) {
    return JsonConfig(parse_json(json, path), path).values();
  };
  if (media::suffix_of(path) == ".safetensors") return settings_from(settings_of_latents(path));
  std::string text;
  if (is_stream(path)) text = read_file_or_stream(path, kMostBytes);
  const media::Source source =
      is_stream(path) ? media::memory_source(std::as_bytes(std::span(text))) : media::open_source(path);
  if (const auto embedded = embedded_settings(source, path)) return settings_from(*embedded);
  if (!is_stream(path)) text = read_file_or_stream(path, kMostBytes);
  const std::string_view json = without_mark(text);
  if (!json.substr(std::min(json.find_first_not_of(" \t\r\n"), json.size())).starts_with('{'))
    input_error(
        path,
        "neither a request in JSON, nor a report, an image, a video or latents that this program wrote");
  const Json all = parse_json(json, path);
  if (plan::is_trace(all))
    input_error(path, "a trace is not a request; give an image, a video, a report or a request in JSON");
  const auto settings = all.find("settings");
  return settings != all.end() && settings->is_object() ? *settings : all;
}

std::vector<std::string> names_of_request() {
  std::vector<std::string> names = {"model", "config", "variant", "threads"};
  for (const FieldInfo& info : engine::request_fields()) names.push_back(info.name);
  for (const FieldInfo& info : parallel::parallel_fields()) names.push_back(info.name);
  return names;
}

// Returns the fields of a record that a command line could give, after checking that they are valid.
Json fields_of(const Json& record, const std::string& path) {
  const std::vector<std::string> known = names_of_request();
  Json fields = Json::object();
  for (const auto& [name, value] : record.items()) {
    const bool is_derived = std::find(kDerived.begin(), kDerived.end(), name) != kDerived.end() ||
                            (name == "image" && value.is_number_integer());
    if (is_derived || value.is_null()) continue;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const auto nearest = nearest_word(name, known);
      input_error(path, "'{}' is not a field of a request{}", printable(name),
                  nearest ? fmt::format("; did you mean '{}'?", *nearest) : "");
    }
    fields[name] = value;
  }
  try {
    make_arguments(fields);
  } catch (const Error& error) {
    throw Error(ErrorKind::kInput, path, error.message());
  }
  return fields;
}

// A PNG names its model without the path.
void require_model(const RunOptions& run, const std::string& path) {
  try {
    engine::find_model_files(run.model, run.config);
  } catch (const Error&) {
    input_error(path, "its model '{}' is not here; give its path with {}", *run.model, field("model"));
  }
}

// All images of a seed must be generated to get one of them again.
void say_which(const Json& record, const GenerateArguments& arguments) {
  const engine::Request& request = arguments.request;
  const auto count = static_cast<int64_t>(request.prompts.size()) * request.num_images_per_prompt;
  const std::optional<int64_t> image = image_index(record);
  if (!image || count == 1 || arguments.run.quiet) return;
  launch::say(fmt::format("{} is image {} of the {} that are made again\n", *arguments.run.request,
                          *image + 1, count));
}

}  // namespace

GenerateArguments with_files(const GenerateArguments& arguments) {
  const RunOptions& run = arguments.run;
  Json given = arguments.given;
  if (run.prompt_file && given.contains("prompt"))
    usage_error(field("prompt_file"), "there are prompts on the command line too; give either");
  if (run.prompt_file) {
    Json prompts = read_prompts(*run.prompt_file);
    if (std::ssize(prompts) > engine::kMaxPictures)
      usage_error(field("prompt_file"),
                  "{} holds {} prompts, and a run makes at most {} images; split the file", *run.prompt_file,
                  prompts.size(), engine::kMaxPictures);
    given["prompt"] = std::move(prompts);
  }
  if (!run.request) return make_arguments(std::move(given));
  const Json record = read_record(*run.request);
  Json all = fields_of(record, *run.request);
  if (given.contains("model")) all.erase("config");
  // A plan replaces the layout that the recorded run had.
  if (given.contains("parallel")) {
    for (const FieldInfo& info : parallel::parallel_fields()) all.erase(info.name);
  }
  if (given.contains("image")) all.erase("image_size");  // the size belonged to another picture
  const bool needs_model = all.contains("model") && !given.contains("model");
  all.update(given);
  GenerateArguments result = make_arguments(std::move(all));
  if (needs_model) require_model(result.run, *run.request);
  if (image_index(record)) {
    if (!given.contains("reference_path") && !given.contains("prompt")) result.names_from = run.request;
    if (!given.contains("image")) result.images_from = run.request;
  }
  say_which(record, result);
  return result;
}

}  // namespace tessera::job
