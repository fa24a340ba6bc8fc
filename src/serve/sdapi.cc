#include "serve/sdapi.h"

#include <random>

#include "core/text.h"
#include "serve/sdapi_lists.h"
#include "serve/sdapi_request.h"
#include "serve/sdapi_samplers.h"
#include "serve/sdapi_task.h"

namespace tessera::serve {
namespace {

constexpr const char* kPrefix = "/sdapi/v1/";

// State that the handlers share. They run on one thread.
struct SdapiState {
  JobService& service;
  const ApiOptions options;
  const ModelTraits model;
  PictureTasks tasks = {};
};
using Sdapi = std::shared_ptr<SdapiState>;

void txt2img(const Sdapi& state, const std::shared_ptr<Exchange>& exchange) {
  // As in AUTOMATIC1111, a drawn seed has 32 bits.
  const uint64_t drawn = std::random_device()();
  PictureCall call = read_txt2img(read_json_body(exchange->request()), state->model, state->options, drawn);
  const auto task = std::make_shared<PictureTask>(state->service, exchange, std::move(call), state->model);
  state->tasks.add(task);
  task->begin();
}

std::string task_of(const HttpRequest& request) {
  return std::string(text_of(request.query, "task"));
}

void progress(const Sdapi& state, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const auto task = state->tasks.current(request.owner, task_of(request));
  OrderedJson answer;
  if (task) {
    answer = task->progress();
  } else {
    answer = {{"progress", 0.0},
              {"eta_relative", 0.0},
              {"state",
               {{"skipped", false},
                {"interrupted", false},
                {"stopping_generation", false},
                {"job", ""},
                {"job_count", 0},
                {"job_timestamp", "0"},
                {"job_no", 0},
                {"sampling_step", 0},
                {"sampling_steps", 0}}},
              {"textinfo", nullptr},
              {"current_task", nullptr}};
  }
  answer["current_image"] = nullptr;
  const std::string_view skips = text_of(request.query, "skip_current_image");
  // Python's clients write True.
  const bool has_image = task && !equal_names(skips, "true") && skips != "1";
  if (const auto preview = has_image ? task->preview() : nullptr)
    answer["current_image"] = encode_base64(*preview);
  exchange->respond(json_response(answer));
}

void interrupt(const Sdapi& state, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  for (const auto& task : state->tasks.of(request.owner, task_of(request))) {
    if (task->is_running()) task->interrupt();
  }
  exchange->respond({.body = "{}\n"});
}

void skip(const Sdapi& state, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const auto task = state->tasks.current(request.owner, task_of(request));
  if (task && task->is_running()) task->skip();
  exchange->respond({.body = "null\n"});
}

// Finds the progress of a task by the name that its client chose.
void internal_progress(const Sdapi& state, const std::shared_ptr<Exchange>& exchange) {
  ApiFields fields(read_json_body(exchange->request()), 422);
  const std::string name = fields.text("id_task").value_or("");
  const bool wants_preview = fields.flag("live_preview").value_or(true);
  const std::string& owner = exchange->request().owner;
  const auto task = name.empty() ? nullptr : state->tasks.current(owner, name);
  OrderedJson answer = {{"active", task && task->is_running()},
                        {"queued", task && !task->is_running()},
                        {"completed", !task && state->tasks.has_ended(owner, name)},
                        {"progress", nullptr},
                        {"eta", nullptr},
                        {"live_preview", nullptr},
                        {"id_live_preview", fields.integer("id_live_preview", -1, 1LL << 40).value_or(-1)},
                        {"textinfo", "Waiting..."}};
  if (task) {
    const OrderedJson known = task->progress();
    answer["progress"] = known.at("progress");
    answer["eta"] = known.at("eta_relative");
    answer["textinfo"] = known.at("textinfo");
    if (const auto preview = wants_preview ? task->preview() : nullptr)
      answer["live_preview"] = "data:image/jpeg;base64," + encode_base64(*preview);
  }
  exchange->respond(json_response(answer));
}

void pending_tasks(const Sdapi& state, const std::shared_ptr<Exchange>& exchange) {
  OrderedJson names = OrderedJson::array();
  for (const auto& task : state->tasks.of(exchange->request().owner)) {
    if (!task->is_running()) names.push_back(task->name());
  }
  const size_t size = names.size();
  exchange->respond(json_response({{"size", size}, {"tasks", std::move(names)}}));
}

void set_options(const Sdapi& state, const std::shared_ptr<Exchange>& exchange) {
  check_sd_options(read_json_body(exchange->request()), state->model);
  exchange->respond({.body = "null\n"});
}

void read_png_info(const Sdapi&, const std::shared_ptr<Exchange>& exchange) {
  ApiFields fields(read_json_body(exchange->request()), 422);
  const auto bytes = picture_of_text(fields.text("image").value_or(""));
  if (!bytes) fields.refuse("image", "must be a picture in Base64", "invalid_image");
  exchange->respond(json_response(png_info(*bytes)));
}

// Routes that give everybody the same answer.
void add_fixed(std::vector<Route>& routes, const std::string& method, const std::string& path,
               const std::string& body) {
  routes.push_back({method, kPrefix + path,
                    [body](const auto& exchange) { exchange->respond({.body = body}); },
                    method == "POST" ? size_t{1} << 16 : 0});
}

// Operations that AUTOMATIC1111 has and this server lacks.
void add_refusals(std::vector<Route>& routes, const ApiOptions& options) {
  for (const std::string name : {"img2img", "extra-single-image", "extra-batch-images", "interrogate",
                                 "unload-checkpoint", "reload-checkpoint", "create/embedding",
                                 "create/hypernetwork", "train/embedding", "train/hypernetwork"}) {
    const std::string why = fmt::format("{} is not supported; txt2img is", name);
    routes.push_back({"POST", kPrefix + name,
                      [why](const auto& exchange) {
                        exchange->respond(
                            error_response(exchange->request().path, 501, "unsupported_operation", why));
                      },
                      options.upload_bytes});
  }
}

}  // namespace

std::vector<Route> sdapi_routes(JobService& service, const ApiOptions& options) {
  const Sdapi state(new SdapiState{service, options, traits_of(service)});
  std::vector<Route> routes;
  const auto add = [&](const char* method, const std::string& path, auto call, size_t bytes = 0) {
    routes.push_back({method, path,
                      answering_errors([state, call](const auto& exchange) { call(state, exchange); }),
                      bytes});
  };
  const std::string prefix = kPrefix;
  add("POST", prefix + "txt2img", txt2img, options.body_bytes);
  add("GET", prefix + "progress", progress);
  add("POST", prefix + "interrupt", interrupt, 1 << 16);
  add("POST", prefix + "skip", skip, 1 << 16);
  add("POST", prefix + "options", set_options, options.body_bytes);
  add("POST", prefix + "png-info", read_png_info, options.upload_bytes);
  add("POST", "/internal/progress", internal_progress, 1 << 16);
  add("POST", "/internal/pending-tasks", pending_tasks, 1 << 16);
  add("GET", "/internal/pending-tasks", pending_tasks);
  add("GET", prefix + "memory",
      [](const Sdapi&, const auto& exchange) { exchange->respond(json_response(sd_memory())); });
  const auto fixed = [&](const std::string& path, const OrderedJson& json) {
    add_fixed(routes, "GET", path, dump(json) + "\n");
  };
  fixed("options", sd_options(state->model));
  fixed("sd-models", sd_models(state->model));
  fixed("samplers", sampler_list(state->model));
  fixed("schedulers", schedule_list());
  for (const auto& [path, json] : sd_lists()) fixed(path, json);
  for (const char* const path : {"refresh-checkpoints", "refresh-vae", "refresh-loras", "refresh-embeddings"})
    add_fixed(routes, "POST", path, "null\n");
  add_refusals(routes, options);
  return routes;
}

}  // namespace tessera::serve
