#include "serve/stored_job.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "serve/job_json.h"

namespace tessera::serve {
namespace {

constexpr uint64_t kMostSavedBytes = uint64_t{16} << 30;

template <typename Read>
auto read_stored(const std::string& where, const std::string& text, const Read& read) {
  try {
    return read(parse_json(text, where));
  } catch (const Json::exception& error) {
    input_error(where, "this is not what a server stores: {}", error.what());
  }
}

JobError read_job_error(const std::string& text) {
  if (text.empty()) return {.code = "failed", .message = "the job has failed"};
  return read_stored("error of a job", text, [](const Json& json) {
    return JobError{.code = json.at("code").get<std::string>(),
                    .message = json.at("message").get<std::string>(),
                    .status = json.at("status").get<int>()};
  });
}

std::optional<engine::Seconds> read_stored_seconds(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return read_stored("seconds of a job", text, [](const Json& json) {
    const auto part = [&](const char* name) { return json.at(name).get<double>(); };
    return engine::Seconds{.load = part("load"),
                           .encode = part("encode"),
                           .denoise = part("denoise"),
                           .decode = part("decode"),
                           .write = part("write"),
                           .total = part("total")};
  });
}

}  // namespace

std::string write_stored_job(const JobView& view) {
  const OrderedJson json = {{"request", write_fields(engine::request_fields(), view.request.request)},
                            {"suffix", view.request.suffix},
                            {"echo", view.request.echo},
                            {"is_awaited", view.request.is_awaited},
                            {"steps", view.steps},
                            {"pictures", view.pictures},
                            {"size", {view.width, view.height, view.frames}},
                            {"seeds", view.seeds},
                            {"warnings", view.warnings}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

JobView read_stored_job(const std::string& text) {
  return read_stored("job", text, [](const Json& json) {
    JobView view;
    view.request.request = read_fields(engine::request_fields(), json.at("request"));
    view.request.suffix = json.at("suffix").get<std::string>();
    view.request.echo = json.at("echo").get<std::string>();
    view.request.is_awaited = json.at("is_awaited").get<bool>();
    view.steps = json.at("steps").get<int64_t>();
    view.pictures = json.at("pictures").get<int64_t>();
    view.width = json.at("size").at(0).get<int64_t>();
    view.height = json.at("size").at(1).get<int64_t>();
    view.frames = json.at("size").at(2).get<int64_t>();
    view.seeds = json.at("seeds").get<std::vector<uint64_t>>();
    view.warnings = json.value("warnings", std::vector<std::string>());
    return view;
  });
}

JobView view_of(const JournalJob& job, const std::vector<StoredResult>& results) {
  JobView view = read_stored_job(job.submission.request);
  view.id = job.submission.id;
  view.request.owner = job.submission.owner;
  view.request.api = job.submission.family;
  view.request.idempotency_key = job.submission.idempotency_key;
  view.request.body_hash = job.submission.body_hash;
  view.state = job.state;
  view.attempts = job.attempts;
  view.accepted = job.submission.accepted;
  view.started = job.started;
  view.ended = job.ended;
  view.results = results;
  view.seconds = read_stored_seconds(job.seconds);
  if (!results.empty()) view.expires = results.front().expires;
  if (has_ended(job.state) && job.state != JobState::kSucceeded) view.error = read_job_error(job.error);
  if (job.state == JobState::kSucceeded) view.step = view.steps;
  return view;
}

std::string write_job_error(const JobError& error) {
  return Json{{"code", error.code}, {"message", error.message}, {"status", error.status}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

std::string write_stored_seconds(const JobView& view) {
  return view.seconds ? seconds_json(*view.seconds).dump() : "";
}

std::string write_saved_head(const SavedRunFile& file) {
  Json json = {
      {"slots", Json::array()}, {"requests", file.requests}, {"seconds_per_work", file.seconds_per_work}};
  for (const SavedRunFile::Slot& each : file.slots) json["slots"].push_back({each.id, each.pictures});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

SavedRunFile read_saved_file(const std::filesystem::path& path) {
  const std::string bytes = read_file(path, kMostSavedBytes);
  const size_t end = bytes.find('\n');
  if (end == std::string::npos) input_error(path.string(), "this is no saved run");
  return read_stored(path.string(), bytes.substr(0, end), [&](const Json& json) {
    SavedRunFile file{.requests = json.at("requests").get<std::vector<std::string>>(),
                      .saved = bytes.substr(end + 1),
                      .seconds_per_work = json.value("seconds_per_work", 0.0)};
    for (const Json& each : json.at("slots"))
      file.slots.push_back({.id = each.at(0).get<std::string>(), .pictures = each.at(1).get<int64_t>()});
    return file;
  });
}

}  // namespace tessera::serve
