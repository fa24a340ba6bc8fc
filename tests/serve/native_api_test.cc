#include "serve/native_api.h"

#include "serve/job_json.h"
#include "serve/operations.h"
#include "serve/routes.h"
#include "tests/serve/service_fixture.h"

namespace tessera::serve {
namespace {

// What a client gets.
class FakeExchange final : public Exchange {
 public:
  explicit FakeExchange(HttpRequest request) : request_(std::move(request)) {}
  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override { answer = std::move(response); }
  void begin_events() override { is_stream = true; }
  void send(const Event& event) override { events.push_back(event); }
  void end_events() override { is_over = true; }
  bool is_gone() const override { return has_gone; }
  void on_gone(std::function<void()> call) override { gone_ = std::move(call); }
  void go() {
    has_gone = true;
    if (gone_) std::exchange(gone_, nullptr)();
  }
  Json json() const { return parse_json(answer.value_or(HttpResponse()).body, "answer"); }

  std::optional<HttpResponse> answer;
  std::vector<Event> events;
  bool is_stream = false, is_over = false, has_gone = false;

 private:
  HttpRequest request_;
  std::function<void()> gone_;
};

class NativeApiTest : public ServiceTest {
 protected:
  void begin() {
    start();
    std::vector<Route> routes = native_routes(*service_, options_.limits, 1 << 20);
    for (Route& each : operation_routes(*service_, *metrics_)) routes.push_back(std::move(each));
    routes_.emplace(std::move(routes));
  }
  std::shared_ptr<FakeExchange> begin_call(const std::string& method, const std::string& path,
                                           const std::string& body = {}, NamedTexts headers = {},
                                           NamedTexts query = {}, const std::string& owner = "ann") {
    const Routes::Match match = routes_->find(method, path);
    EXPECT_NE(match.route, nullptr) << path;
    HttpRequest request{.method = method,
                        .path = path,
                        .parameters = *match.parameters,
                        .query = std::move(query),
                        .headers = std::move(headers),
                        .body = body,
                        .owner = owner,
                        .id = {}};
    if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
    auto exchange = std::make_shared<FakeExchange>(std::move(request));
    match.route->handler(exchange);
    return exchange;
  }
  template <typename... Rest>
  std::shared_ptr<FakeExchange> call(const Rest&... rest) {
    const auto exchange = begin_call(rest...);
    wait_for([&] { return exchange->answer.has_value(); });
    return exchange;
  }
  static std::string body(int64_t steps = 4) {
    return Json{{"prompt", "a cat"}, {"height", 16},
                {"width", 32},       {"num_inference_steps", steps},
                {"seed", 5},         {"use_resolution_binning", false}}
        .dump();
  }

  std::optional<Routes> routes_;
};

TEST_F(NativeApiTest, AJobIsSentFollowedFetchedAndRemoved) {
  begin();
  add_world();
  const auto sent = call("POST", "/v1/jobs", body());
  ASSERT_EQ(sent->answer->status, 202) << sent->answer->body;
  const std::string id = sent->json().at("id"), url = "/v1/jobs/" + id;
  EXPECT_EQ(text_of(sent->answer->headers, "location"), url);
  EXPECT_EQ(sent->json().at("request").at("seed"), 5);
  const auto stream = begin_call("GET", url + "/events");
  finish(id);
  ASSERT_TRUE(stream->is_stream && stream->is_over);
  std::vector<std::string> names;
  for (const Event& each : stream->events) names.push_back(each.name);
  EXPECT_EQ(names, (std::vector<std::string>{"state", "step", "step", "step", "step", "step", "state",
                                             "result", "state"}));
  EXPECT_TRUE(std::ranges::is_sorted(stream->events, {}, [](const Event& each) { return *each.id; }));
  const Json job = call("GET", url)->json();
  EXPECT_EQ(job.at("state"), "succeeded");
  EXPECT_EQ(job.at("place"), nullptr);
  EXPECT_EQ(job.at("seconds").at("denoise"), 30);
  EXPECT_EQ(sent->json().at("seconds"), nullptr);
  const Json result = job.at("results").at(0);
  EXPECT_EQ(result.at("url"), url + "/results/0");
  EXPECT_EQ(result.at("width"), 32);
  const auto file = call("GET", url + "/results/0");
  EXPECT_EQ(file->answer->content_type, "image/png");
  EXPECT_EQ(bytes_of_file(file->answer->file), expected_file(*find(id)));
  EXPECT_EQ(call("GET", url + "/results/1")->answer->status, 404);
  EXPECT_EQ(call("GET", url + "/results/x")->answer->status, 404);
  const auto late = begin_call("GET", url + "/events");
  wait_for([&] { return late->is_over; });
  EXPECT_EQ(late->events.back().name, "state");
  EXPECT_EQ(call("DELETE", url)->json().at("deleted"), true);
  EXPECT_EQ(call("GET", url)->answer->status, 404);
}

TEST_F(NativeApiTest, AStreamEndsWithItsClient) {
  begin();
  add_world();
  const std::string id = call("POST", "/v1/jobs", body(20))->json().at("id");
  const auto stream =
      begin_call("GET", "/v1/jobs/" + id + "/events", "", NamedTexts(), NamedTexts{{"previews", "2"}});
  step(4);
  EXPECT_EQ(world().runs.begin()->second.preview_every, 2);
  wait_for([&] {
    return std::ranges::any_of(stream->events, [](const Event& each) { return each.name == "preview"; });
  });
  EXPECT_EQ(call("GET", "/v1/jobs/" + id + "/preview")->answer->content_type, "image/jpeg");
  const std::weak_ptr<FakeExchange> weak = stream;
  stream->go();
  const size_t count = stream->events.size();
  step(2);
  EXPECT_EQ(stream->events.size(), count);
  EXPECT_EQ(weak.use_count(), 1);  // nobody else holds it
}

TEST_F(NativeApiTest, BadRequestsAreRefusedByName) {
  begin();
  const auto refused = [&](const std::string& text, int status, const Json& parameter) {
    const auto exchange = call("POST", "/v1/jobs", text);
    EXPECT_EQ(exchange->answer->status, status) << text;
    EXPECT_EQ(exchange->json().at("error").at("param"), parameter) << exchange->answer->body;
  };
  refused("{", 400, nullptr);
  refused("[]", 400, nullptr);
  refused(R"({"prompt": "a", "steps": 3})", 400, "steps");
  refused(R"({"prompt": "a", "guidance_scale": NaN})", 400, nullptr);
  refused(R"({"prompt": "a", "timeout": -1})", 400, "timeout");
  refused(R"({"prompt": "a", "image": "../x"})", 400, "image");
  refused(R"({"prompt": "a", "format": "bmp"})", 400, "format");
  refused(R"({"prompt": "a", "num_inference_steps": 100000})", 400, "num_inference_steps");
  EXPECT_EQ(
      call("POST", "/v1/jobs", std::string(), NamedTexts{{"Content-Type", "text/plain"}})->answer->status,
      415);
}

TEST_F(NativeApiTest, FieldsThatNameFilesOfTheServerAreUnknown) {
  begin();
  for (const char* const name : {"reference_path", "image_size"}) {
    const Json error =
        call("POST", "/v1/jobs", fmt::format(R"({{"prompt": "a", "{}": ["x"]}})", name))->json();
    const std::string message = error.at("error").at("message");
    EXPECT_TRUE(message.starts_with(fmt::format("[{}] is not a known field; known fields are ", name)))
        << message;
  }
}

TEST_F(NativeApiTest, QueriesSayWhatIsWrong) {
  begin();
  const std::string id = call("POST", "/v1/jobs", body())->json().at("id");
  const auto refused = [&](const std::string& name, const std::string& value, const std::string& message) {
    const auto exchange = call("GET", "/v1/jobs", "", NamedTexts(), NamedTexts{{name, value}});
    EXPECT_EQ(exchange->answer->status, 400) << name;
    const Json error = exchange->json().at("error");
    EXPECT_EQ(error.at("message"), message);
    EXPECT_EQ(error.at("param"), name);
  };
  refused("order", "up", "order: expected asc or desc, got 'up'");
  refused("bogus", "1", "bogus: is not a known parameter; known ones are state, limit, after and order");
  refused("after", "nosuch", "after: expected the id of a job, got 'nosuch'");
  refused("limit", "0", "limit: expected 1 to 100, got '0'");
  refused("state", "queued,gone",
          "state: expected names of states, separated by commas: queued, running, encoding, succeeded, "
          "failed, cancelled, expired");
  // The place of a job that is not there any more.
  const auto after = [&](const std::string& job, const std::string& order) {
    const NamedTexts query = {{"after", job}, {"order", order}};
    return call("GET", "/v1/jobs", "", NamedTexts(), query)->json().at("data").size();
  };
  EXPECT_EQ(after(std::string(36, '0'), "asc"), 1U);
  EXPECT_EQ(after(std::string(36, 'z'), "asc"), 0U);
  EXPECT_EQ(after(std::string(36, 'z'), "desc"), 1U);
  EXPECT_EQ(after("", "asc"), 1U);
  EXPECT_EQ(after(id, "asc"), 0U);
}

TEST_F(NativeApiTest, AFullQueueIsToldInHeaders) {
  options_.scheduler.max_jobs = 1;
  begin();
  call("POST", "/v1/jobs", body());
  const auto refused = call("POST", "/v1/jobs", body());
  EXPECT_EQ(refused->answer->status, 429);
  EXPECT_GE(std::stoi(std::string(text_of(refused->answer->headers, "retry-after"))), 1);
  EXPECT_EQ(text_of(refused->answer->headers, "x-should-retry"), "true");
}

TEST_F(NativeApiTest, AnIdempotencyKeyGivesTheSameJob) {
  begin();
  const NamedTexts key = {{"Idempotency-Key", "one"}};
  const Json first = call("POST", "/v1/jobs", body(), key)->json();
  EXPECT_EQ(call("POST", "/v1/jobs", body(), key)->json().at("id"), first.at("id"));
  EXPECT_EQ(call("POST", "/v1/jobs", body(5), key)->answer->status, 422);
  const NamedTexts again = {{"x-stainless-retry-count", "1"}};
  EXPECT_EQ(call("POST", "/v1/jobs", body(), again)->json().at("id"), first.at("id"));
}

TEST_F(NativeApiTest, ListsAndCancels) {
  begin();
  const std::string first = call("POST", "/v1/jobs", body())->json().at("id");
  call("POST", "/v1/jobs", body());
  Json page =
      call("GET", "/v1/jobs", "", NamedTexts(), NamedTexts{{"state", "queued,running"}, {"limit", "1"}})
          ->json();
  EXPECT_EQ(page.at("data").at(0).at("id"), first);
  EXPECT_EQ(page.at("data").at(0).at("place").at("jobs_ahead"), 0);
  EXPECT_EQ(page.at("has_more"), true);
  EXPECT_TRUE(call("GET", "/v1/jobs", "", NamedTexts(), NamedTexts(), "bob")->json().at("data").empty());
  EXPECT_EQ(call("DELETE", "/v1/jobs/" + first, "", NamedTexts(), NamedTexts(), "bob")->answer->status, 404);
  EXPECT_EQ(call("DELETE", "/v1/jobs/" + first)->json().at("state"), "cancelled");
}

TEST_F(NativeApiTest, PreviewsAreANumberOfSteps) {
  begin();
  const std::string events = "/v1/jobs/nobody/events";
  for (const char* const wrong : {"x", "-1", "1.5", "1 "})
    EXPECT_EQ(call("GET", events, "", NamedTexts(), NamedTexts{{"previews", wrong}})->answer->status, 400)
        << wrong;
  EXPECT_EQ(call("GET", events, "", NamedTexts(), NamedTexts{{"previews", "2"}})->answer->status, 404);
}

TEST_F(NativeApiTest, TheFieldsAreThoseOfTheModel) {
  begin();
  const Json fields = call("GET", "/v1/fields")->json();
  EXPECT_EQ(fields.at("model"), "tiny");
  const auto has = [&](const std::string& name) {
    return std::ranges::any_of(fields.at("data"), [&](const Json& each) { return each.at("name") == name; });
  };
  EXPECT_TRUE(has("prompt") && has("scheduler") && has("seed"));
  EXPECT_FALSE(has("num_frames") || has("device") || has("dtype"));
}

TEST_F(NativeApiTest, FieldsHaveTheServersLimitsAndTheModelsSamplers) {
  options_.limits.pixels = 4096;
  options_.limits.steps = 60;
  options_.limits.pictures = 3;
  begin();
  std::map<std::string, Json> fields;
  const Json answer = call("GET", "/v1/fields")->json();
  for (const Json& each : answer.at("data")) fields[each.at("name")] = each;
  EXPECT_EQ(fields["width"].at("maximum"), 4096);
  EXPECT_EQ(fields["height"].at("maximum"), 4096);
  EXPECT_EQ(fields["num_inference_steps"].at("maximum"), 60);
  EXPECT_EQ(fields["num_images_per_prompt"].at("maximum"), 3);
  EXPECT_EQ(fields["max_sequence_length"].at("maximum"), 4096);
  const auto samplers = fields["scheduler"].at("suggestions").get<std::vector<std::string>>();
  EXPECT_TRUE(std::ranges::count(samplers, "dpm++") == 1 && std::ranges::count(samplers, "euler-a") == 1);
  EXPECT_EQ(std::ranges::count(samplers, "flow-euler") + std::ranges::count(samplers, "edm-euler"), 0);
  EXPECT_FALSE(fields["prompt"].contains("suggestions"));
}

TEST_F(NativeApiTest, OperationsTellHowTheServerIs) {
  begin();
  EXPECT_EQ(call("GET", "/health")->answer->status, 200);
  const auto ready = call("GET", "/ready");
  EXPECT_EQ(ready->answer->status, 503);
  EXPECT_EQ(ready->json().at("reason"), "loading");
  add_world();
  EXPECT_EQ(call("GET", "/ready")->answer->status, 200);
  finish(call("POST", "/v1/jobs", body())->json().at("id"));
  const std::string metrics = call("GET", "/metrics")->answer->body;
  EXPECT_NE(metrics.find("tessera_jobs_total{api=\"jobs\",state=\"succeeded\"} 1"), std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("tessera_steps_total 4"), std::string::npos) << metrics;
  const Json status = call("GET", "/v1/status")->json();
  EXPECT_EQ(status.at("worlds").at(0).at("state"), "ready");
  const std::string id = call("POST", "/v1/jobs", body())->json().at("id");
  step(2);
  call("DELETE", "/v1/jobs/" + id);
  EXPECT_EQ(call("GET", "/v1/status")->json().at("worlds").at(0).at("state"), "finishing");
  EXPECT_EQ(call("GET", "/ready")->answer->status, 200);
  world().die();
  service_->read_world(0);
  EXPECT_EQ(call("GET", "/ready")->answer->status, 503);
}

TEST_F(NativeApiTest, WhyAWorldWasLostNamesNoFile) {
  begin();
  add_world();
  const auto last_loss = [&] {
    return call("GET", "/v1/status")->json().at("worlds").at(0).at("last_loss").get<std::string>();
  };
  service_->lose_world(0, "was stopped for 2 s");
  EXPECT_EQ(last_loss(), "was stopped for 2 s");
  EXPECT_EQ(call("GET", "/ready")->json().at("reason"), "restarting");
  service_->lose_world(0, "[/home/ann/model.safetensors] is cut short");
  EXPECT_EQ(last_loss(), "has failed; the server's log says why");
  add_world();
  EXPECT_EQ(last_loss(), "has failed; the server's log says why");  // of the world before
}

TEST_F(NativeApiTest, RestartsAreKnownWhileAWorldIsGone) {
  options_.restarts = 2;
  begin();
  FakeWorld world;
  service_->add_world(0, world.link(), 3);
  const auto restarts = [&] { return call("GET", "/v1/status")->json().at("worlds").at(0).at("restarts"); };
  EXPECT_EQ(restarts(), 3);
  EXPECT_EQ(call("GET", "/v1/status")->json().at("restarts"), 2);
  service_->world_loaded(0);
  EXPECT_EQ(call("GET", "/ready")->json().at("reason"), "finishing");  // what the front before has begun
  service_->lose_world(0, "was stopped for 2 s");
  EXPECT_EQ(restarts(), 3);
}

TEST(RequestLogTest, ALineHasNoPathAndNoBody) {
  Metrics metrics;
  std::string line;
  const auto log =
      request_log(metrics, [] { return WallTime(); }, [&](std::string_view text) { line = text; });
  HttpRequest request{.method = "POST",
                      .path = "/v1/jobs/SECRET",
                      .parameters = {},
                      .query = {},
                      .headers = {},
                      .body = "SECRET",
                      .owner = "ann",
                      .id = "r1"};
  log({.request = request, .route = "/v1/jobs/{id}", .status = 200, .seconds = 0.5});
  EXPECT_EQ(line.find("SECRET"), std::string::npos);
  const Json json = parse_json(line, "line");
  EXPECT_EQ(json.at("route"), "/v1/jobs/{id}");
  EXPECT_EQ(json.at("owner"), "ann");
  EXPECT_EQ(json.at("request"), "r1");
}

}  // namespace
}  // namespace tessera::serve
