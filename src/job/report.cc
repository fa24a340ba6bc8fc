#include "job/report.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace tessera::job {
namespace {

OrderedJson parallel_json(const parallel::Layout& layout) {
  const parallel::Mesh mesh(layout.sizes);
  OrderedJson json = {{"world_size", mesh.world_size()}};
  for (auto axis = parallel::kAllAxes.rbegin(); axis != parallel::kAllAxes.rend(); ++axis) {
    if (layout.sizes[*axis] > 1) json[std::string(parallel::axis_name(*axis))] = layout.sizes[*axis];
  }
  const bool is_pipeline = layout.sizes[parallel::Axis::kPipeline] > 1;
  if (is_pipeline) json["attn_layer_num_for_pp"] = layout.stage_blocks;
  if (is_pipeline || layout.patches > 1) {
    json["num_pipeline_patch"] = layout.patches;
    json["warmup_steps"] = layout.warmup_steps;
  }
  if (layout.displacement) {
    json["displaced_mode"] = parallel::mode_name(layout.displacement->mode);
    json["warmup_steps"] = layout.displacement->warmup_steps;
  }
  return json;
}

// Adds the parallel options that were given. They determine the number of ranks to start.
void add_parallel_options(OrderedJson& json, const parallel::ParallelOptions& options) {
  for (const Field<parallel::ParallelOptions>& each : parallel::parallel_fields()) {
    const Json value = each.get(options);
    if (value != each.get({}) && each.name != "nproc") json[each.name] = value;
  }
}

// Describes which of the pictures of one seed it is; all of them must be made again to make it.
std::string image_text(const engine::Settings& settings, int64_t index) {
  const int64_t pictures = settings.pictures();
  return pictures == 1 ? "" : fmt::format("Image: {} of {}, ", index + 1, pictures);
}

// The options are quoted, as web UIs write and read values that contain commas.
std::string options_text(const engine::Request& request) {
  if (request.scheduler_options.empty()) return "";
  const std::string options = fmt::format("{}", fmt::join(request.scheduler_options, ", "));
  return fmt::format("Sampler options: {}, ", Json(options).dump());
}

// Returns the prediction of a plan together with the measurements of the run. A plan does not include loading
// and writing, and the memory of a rank is what it took beyond what it had at the start.
OrderedJson compared_plan(OrderedJson plan, const engine::Result& result,
                          const std::vector<OrderedJson>& ranks, bool is_cpu) {
  const auto compare = [&](const char* name, OrderedJson measured) {
    plan[name] = {{"predicted", plan.at(name)}, {"measured", std::move(measured)}};
  };
  const engine::Seconds& seconds = result.seconds;
  compare("seconds", seconds.encode + seconds.denoise + seconds.decode);
  compare("encode_seconds", seconds.encode);
  compare("denoise_seconds", seconds.denoise);
  compare("decode_seconds", seconds.decode);
  std::vector<double> steps = result.step_seconds;
  std::sort(steps.begin(), steps.end());
  compare("step_seconds", steps.empty() ? OrderedJson() : OrderedJson(steps[(steps.size() - 1) / 2]));
  OrderedJson peaks = OrderedJson::array();
  for (const OrderedJson& rank : ranks)
    peaks.push_back(rank.at("peak_rss_bytes").get<int64_t>() - rank.at("first_rss_bytes").get<int64_t>());
  compare("peak_bytes", is_cpu ? std::move(peaks) : OrderedJson());
  return plan;
}

uint64_t peak_rss_bytes() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;  // Linux reports KiB
}

}  // namespace

OrderedJson settings_json(const Job& job) {
  const auto& [arguments, model, settings, layout, outputs] = job;
  OrderedJson json = {{"model", model.path().string()}, {"model_class", model.family->class_name}};
  if (arguments.run.config) json["config"] = *arguments.run.config;
  if (arguments.run.variant) json["variant"] = *arguments.run.variant;
  json.update(write_fields(engine::request_fields(), settings.request));
  add_parallel_options(json, arguments.parallel);
  json["scheduler_class"] = settings.scheduler;
  json["model_height"] = settings.model_height;
  json["model_width"] = settings.model_width;
  if (arguments.run.threads) json["threads"] = *arguments.run.threads;
  json["version"] = TESSERA_VERSION;
  if (parallel::Mesh(layout.sizes).world_size() > 1 || layout.patches > 1)
    json["parallel"] = parallel_json(layout);
  return json;
}

std::string model_name(const engine::Model& model) {
  std::error_code code;  // the working folder may have been deleted
  const std::filesystem::path folder = std::filesystem::absolute(model.path(), code).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

OrderedJson make_report(const Job& job, const engine::Result& result, const std::vector<OrderedJson>& ranks,
                        const std::vector<std::string>& outputs) {
  const engine::Seconds& seconds = result.seconds;
  OrderedJson report = {{"settings", settings_json(job)},
                        {"seconds",
                         {{"load", seconds.load},
                          {"encode", seconds.encode},
                          {"denoise", seconds.denoise},
                          {"decode", seconds.decode},
                          {"write", seconds.write},
                          {"total", seconds.total}}},
                        {"step_seconds", result.step_seconds},
                        {"ranks", ranks},
                        {"outputs", outputs}};
  if (!job.arguments.plan.is_null())
    report["plan"] = compared_plan(job.arguments.plan, result, ranks, job.settings.request.device.is_cpu());
  return report;
}

uint64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream file("/proc/self/statm");
  file >> size >> resident;
  return static_cast<uint64_t>(resident) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

OrderedJson rank_report(int64_t rank, uint64_t first_rss_bytes, const engine::Result& result,
                        OrderedJson communication) {
  return {{"rank", rank},
          {"threads", at::get_num_threads()},
          {"first_rss_bytes", first_rss_bytes},
          {"peak_rss_bytes", peak_rss_bytes()},
          {"weights_bytes", result.weights_bytes},
          {"weights_memory_bytes", result.weights_memory_bytes},
          {"bytes_read", result.bytes_read},
          {"communication", std::move(communication)}};
}

ImageText png_text(const Job& job, int64_t index) {
  const engine::Settings& settings = job.settings;
  const engine::Request& request = settings.request;
  const auto number = static_cast<size_t>(index / request.num_images_per_prompt);
  engine::Request published = request;
  published.video.reference_paths = settings.video.published_paths;
  for (std::string& path : published.images) path = std::filesystem::path(path).filename().string();
  if (!settings.video.published_prompts.empty()) published.prompts = settings.video.published_prompts;
  std::string parameters = published.prompts.at(number);
  const std::string negative = settings.negative_prompt(number).text;
  if (!negative.empty()) parameters += "\nNegative prompt: " + negative;
  parameters += fmt::format(
      "\nSteps: {}, Sampler: {}, {}CFG scale: {}, Seed: {}, {}Size: {}x{}, Model: {}, Version: Tessera {}",
      settings.steps, settings.scheduler, options_text(request), settings.guidance, *request.seed,
      image_text(settings, index), settings.width, settings.height, model_name(job.model), TESSERA_VERSION);
  OrderedJson json = settings_json(job);
  // Paths describe the machine, not the picture.
  json["model"] = model_name(job.model);
  json.erase("config");
  json.update(write_fields(engine::request_fields(), published));
  json["image_index"] = index;
  const std::string text = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return {{"parameters", parameters}, {"tessera", text}, {"Software", "Tessera " TESSERA_VERSION}};
}

}  // namespace tessera::job
