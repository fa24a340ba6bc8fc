// A JobService whose jobs continue when a test says so, and an Exchange that keeps what it was sent.
#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "engine/model.h"
#include "serve/http.h"
#include "serve/job_service.h"
#include "serve/routes.h"
#include "tests/support/golden.h"

namespace tessera::serve {

class RecordedExchange final : public Exchange {
 public:
  explicit RecordedExchange(HttpRequest request) : request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse answer) override {
    if (!response && !has_begun) response = std::move(answer);
  }
  void begin_events() override { has_begun = !response; }
  void send(const Event& event) override { events.push_back(event); }
  void end_events() override { has_ended = true; }
  bool is_gone() const override { return is_gone_; }
  void on_gone(std::function<void()> call) override { on_gone_ = std::move(call); }

  void go() {
    is_gone_ = true;
    if (const auto call = std::exchange(on_gone_, nullptr)) call();
  }
  Json json() const { return response ? Json::parse(response->body) : Json(); }
  int status() const { return response ? response->status : 0; }
  std::string header(std::string_view name) const {
    return response ? std::string(text_of(response->headers, name)) : "";
  }

  std::optional<HttpResponse> response;
  std::vector<Event> events;
  bool has_begun = false, has_ended = false;

 private:
  HttpRequest request_;
  std::function<void()> on_gone_;
  bool is_gone_ = false;
};

class FakeJobs final : public JobService {
 public:
  struct Entry {
    JobView view;
    int64_t preview_every = 0;
    std::vector<std::weak_ptr<Follower>> followers = {};
  };

  explicit FakeJobs(const std::string& golden) : model_(engine::read_model(golden_folder(golden))) {}

  // What a test does with the jobs.
  void step(size_t index, int64_t step) {
    JobView& view = jobs.at(index).view;
    view.state = JobState::kRunning;
    if (!view.started) view.started = view.accepted + std::chrono::seconds(1);
    view.step = step;
    tell(index, JobUpdate::Kind::kStep);
  }
  void show(size_t index, int64_t picture, const std::string& jpeg) {
    tell(index, JobUpdate::Kind::kPreview, picture, jpeg);
  }
  void succeed(size_t index, const std::vector<std::string>& files,
               const std::filesystem::path& folder = {}) {
    for (size_t i = 0; i < files.size(); ++i)
      tell(index, JobUpdate::Kind::kResult, static_cast<int64_t>(i), files[i]);
    JobView& view = jobs.at(index).view;
    for (size_t i = 0; i < files.size(); ++i) {
      view.results.push_back(
          {folder.empty() ? folder : folder / std::to_string(i), "image/png", files[i].size(), {}});
      view.seeds.push_back(*view.request.request.seed);
    }
    view.seconds = {.load = 0, .encode = 0.5, .denoise = 1, .decode = 0.25, .write = 0.0125, .total = 2};
    end(index, JobState::kSucceeded, std::nullopt);
  }
  void end(size_t index, JobState state, std::optional<JobError> error) {
    JobView& view = jobs.at(index).view;
    if (!view.started) view.started = view.accepted;
    view.state = state;
    view.error = std::move(error);
    view.ended = view.accepted + std::chrono::seconds(3);
    tell(index, JobUpdate::Kind::kState);
  }
  size_t followers(size_t index) const {
    const auto& all = jobs.at(index).followers;
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [](const auto& each) { return !each.expired(); }));
  }

  void submit(JobRequest request, Submitted done) override {
    if (refusal) return done(*refusal, false);
    if (attached) return done(jobs.at(*attached).view, true);
    Entry entry;
    JobView& view = entry.view;
    view.id = "job" + std::to_string(jobs.size());
    if (!request.request.seed) request.request.seed = 1000 + jobs.size();
    if (!request.request.num_inference_steps) request.request.num_inference_steps = 20;
    if (!request.request.guidance_scale) request.request.guidance_scale = 4.5;
    view.pictures = request.request.num_images_per_prompt;
    view.width = request.request.width.value_or(64);
    view.height = request.request.height.value_or(48);
    view.frames = request.request.video.num_frames.value_or(1);
    view.steps = *request.request.num_inference_steps;
    view.accepted = WallTime(std::chrono::seconds(1'700'000'000 + std::ssize(jobs)));
    view.request = std::move(request);
    jobs.push_back(std::move(entry));
    const JobView copy = jobs.back().view;
    done(copy, false);
  }
  void find(const std::string& owner, const std::string& id, Found done) override {
    const Entry* const entry = entry_of(owner, id);
    done(entry ? std::optional(entry->view) : std::nullopt);
  }
  void list(const std::string& owner, const JobFilter& filter,
            std::function<void(std::vector<JobView>)> done) override {
    std::vector<JobView> found;
    for (const Entry& each : jobs) {
      if (each.view.request.owner == owner && each.view.request.api == filter.api) found.push_back(each.view);
    }
    if (filter.newest_first) std::reverse(found.begin(), found.end());
    const auto after = std::find_if(found.begin(), found.end(),
                                    [&](const JobView& each) { return each.id == filter.after; });
    if (after != found.end()) found.erase(found.begin(), after + 1);
    if (std::ssize(found) > filter.limit) found.resize(static_cast<size_t>(filter.limit));
    done(found);
  }
  void cancel(const std::string& owner, const std::string& id, Found done) override {
    cancelled.push_back(id);
    if (Entry* const entry = entry_of(owner, id); entry && !has_ended(entry->view.state))
      end(static_cast<size_t>(std::distance(jobs.data(), entry)), JobState::kCancelled,
          JobError{"cancelled", "was cancelled", 409});
    find(owner, id, done);
  }
  void remove(const std::string& owner, const std::string& id, std::function<void(bool)> done) override {
    removed.push_back(id);
    done(entry_of(owner, id) != nullptr);
  }
  std::shared_ptr<Follower> follow(const std::string& owner, const std::string& id, int64_t preview_every,
                                   Told told) override {
    Entry* const entry = entry_of(owner, id);
    if (!entry || has_ended(entry->view.state)) return nullptr;
    const auto follower = std::make_shared<Fake>(std::move(told));
    entry->preview_every = preview_every;
    entry->followers.push_back(follower);
    const JobView view = entry->view;
    follower->told({.kind = JobUpdate::Kind::kState, .number = ++number_, .job = view});
    return follower;
  }
  std::shared_ptr<const std::string> preview(const std::string&, const std::string& id) override {
    const auto found = previews.find(id);
    return found == previews.end() ? nullptr : std::make_shared<const std::string>(found->second);
  }
  std::vector<JobView> unfinished(const std::string&) override { return {}; }
  const engine::Model& model() const override { return model_; }
  std::string model_name() const override { return "tiny"; }
  WallTime started() const override { return WallTime(std::chrono::seconds(1'600'000'000)); }

  std::vector<Entry> jobs;
  std::optional<JobRefusal> refusal;
  std::optional<size_t> attached;  // the job that every request is told to be sent again of
  std::map<std::string, std::string> previews;
  std::vector<std::string> cancelled, removed;

 private:
  struct Fake final : Follower {
    explicit Fake(Told told) : told(std::move(told)) {}
    Told told;
  };

  Entry* entry_of(const std::string& owner, const std::string& id) {
    for (Entry& each : jobs) {
      if (each.view.id == id && each.view.request.owner == owner) return &each;
    }
    return nullptr;
  }
  void tell(size_t index, JobUpdate::Kind kind, int64_t picture = 0,
            const std::optional<std::string>& bytes = std::nullopt) {
    const JobView view = jobs.at(index).view;
    JobUpdate update = {.kind = kind, .number = ++number_, .job = view, .index = picture};
    if (bytes) update.bytes = std::make_shared<const std::string>(*bytes);
    for (const auto& each : std::vector(jobs.at(index).followers)) {
      if (const auto follower = std::dynamic_pointer_cast<Fake>(each.lock())) follower->told(update);
    }
  }

  const engine::Model model_;
  uint64_t number_ = 0;
};

// The routes of an API, called without a server.
class FakeServer {
 public:
  explicit FakeServer(std::vector<Route> routes) : routes_(std::move(routes)) {}

  std::shared_ptr<RecordedExchange> call(const std::string& method, const std::string& target,
                                         const std::string& body = {}, NamedTexts headers = {},
                                         const std::string& owner = "me") {
    const size_t question = target.find('?');
    const std::string path = target.substr(0, question);
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.headers = std::move(headers);
    request.body = body;
    request.owner = owner;
    request.id = "request";
    if (question != std::string::npos) request.query = *parse_query(target.substr(question + 1));
    if (text_of(request.headers, "content-type").empty() && !body.empty())
      request.headers.emplace_back("Content-Type", "application/json");
    request.headers.emplace_back("Host", "here:1234");
    const auto match = routes_.find(method, path);
    if (match.parameters) request.parameters = *match.parameters;
    auto exchange = std::make_shared<RecordedExchange>(std::move(request));
    if (match.route) {
      match.route->handler(exchange);
    } else {
      exchange->respond({.status = match.methods.empty() ? 404 : 405, .body = {}});
    }
    return exchange;
  }
  std::shared_ptr<RecordedExchange> post(const std::string& path, const Json& body, NamedTexts headers = {}) {
    return call("POST", path, body.dump(), std::move(headers));
  }
  std::shared_ptr<RecordedExchange> get(const std::string& target) { return call("GET", target); }

 private:
  Routes routes_;
};

// A body of multipart/form-data. Names with an @ are of files.
inline std::string form(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string body;
  for (const auto& [name, value] : fields) {
    const bool is_file = name.starts_with("@");
    body += "--edge\r\nContent-Disposition: form-data; name=\"" + name.substr(is_file ? 1 : 0) + "\"";
    if (is_file) body += "; filename=\"a.png\"\r\nContent-Type: image/png";
    body += "\r\n\r\n" + value + "\r\n";
  }
  return body + "--edge--\r\n";
}
inline const NamedTexts kForm = {{"Content-Type", "multipart/form-data; boundary=edge"}};
inline const std::string kPng = "\x89PNG\r\n\x1a\n and so on";

}  // namespace tessera::serve
