#include "serve/openai_images.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/text.h"
#include "serve/openai_image_request.h"
#include "serve/web_text.h"
#include "tests/serve/fake_jobs.h"
#include "tests/support/temporary_folder.h"

namespace tessera::serve {
namespace {

class OpenAiImages : public ::testing::Test {
 protected:
  static constexpr const char* kPath = "/v1/images/generations";

  FakeJobs jobs_{"tiny-pixart"};
  FakeServer server_{openai_image_routes(jobs_, {})};

  // The error of an answer, "400 CODE PARAM".
  static std::string error_of(const RecordedExchange& exchange) {
    const Json error = exchange.json().at("error");
    EXPECT_EQ(error.size(), 4U) << error;
    return fmt::format("{} {} {}", exchange.status(), error.at("code").get<std::string>(),
                       error.at("param").is_null() ? "null" : error.at("param").get<std::string>());
  }
  std::string refusal(Json body) {
    if (!body.contains("prompt")) body["prompt"] = "a";
    return error_of(*server_.post(kPath, body));
  }
};

TEST_F(OpenAiImages, AnswerHasTheFileAndItsAddress) {
  const auto exchange = server_.post(
      kPath, {{"prompt", "a cat"}, {"n", 2}, {"size", "96x64"}, {"model", nullptr}, {"stream", false}});
  ASSERT_EQ(jobs_.jobs.size(), 1U);
  EXPECT_EQ(exchange->status(), 0);  // until the pictures are there
  const JobRequest& job = jobs_.jobs[0].view.request;
  EXPECT_EQ(job.request.prompts, std::vector<std::string>{"a cat"});
  EXPECT_EQ(job.request.num_images_per_prompt, 2);
  EXPECT_EQ(job.request.width, 96);
  EXPECT_EQ(job.request.height, 64);
  EXPECT_EQ(job.owner + job.api + job.suffix, "meimages.png");
  EXPECT_TRUE(job.is_awaited && job.is_stored);
  jobs_.succeed(0, {"first", "second"});
  ASSERT_EQ(exchange->status(), 200);
  const Json answer = exchange->json();
  EXPECT_EQ(answer["data"][0]["b64_json"], encode_base64("first"));
  EXPECT_EQ(answer["data"][1]["b64_json"], encode_base64("second"));
  EXPECT_EQ(answer["data"][1]["url"], "http://here:1234/v1/images/job0/content?index=1");
  EXPECT_EQ(answer["data"][1]["seed"], 1000);
  EXPECT_EQ(answer["created"], 1'700'000'000);
  EXPECT_EQ(answer["size"], "96x64");
  EXPECT_EQ(answer["output_format"], "png");
  EXPECT_EQ(answer["usage"]["total_tokens"], 0);
  EXPECT_EQ(answer["inference_time_s"], 3.0);
  EXPECT_EQ(exchange->header("Server-Timing"),
            "load;dur=0.000, encode;dur=500.000, denoise;dur=1000.000, decode;dur=250.000, write;dur=12.500, "
            "total;dur=2000.000");
  EXPECT_FALSE(answer.contains("warnings"));
}

TEST_F(OpenAiImages, FormatsAreThoseThatAreAskedFor) {
  auto exchange = server_.post(kPath, {{"prompt", "a"},
                                       {"response_format", "b64_json"},
                                       {"output_format", "jpeg"},
                                       {"output_compression", 100}});
  EXPECT_FALSE(jobs_.jobs[0].view.request.is_stored);
  EXPECT_EQ(jobs_.jobs[0].view.request.suffix, ".jpg");
  jobs_.succeed(0, {"x"});
  EXPECT_FALSE(exchange->json()["data"][0].contains("url"));
  EXPECT_EQ(exchange->json()["warnings"].size(), 1U);
  exchange = server_.post(kPath, {{"prompt", "a"}, {"response_format", "url"}, {"output_format", "webp"}});
  jobs_.succeed(1, {"x"});
  EXPECT_FALSE(exchange->json()["data"][0].contains("b64_json"));
  EXPECT_EQ(jobs_.jobs[1].view.request.suffix, ".webp");
}

TEST_F(OpenAiImages, FieldsOfTheEngineAreTaken) {
  server_.post(kPath, {{"prompt", "a"},
                       {"num_inference_steps", 7},
                       {"guidance_scale", 2.5},
                       {"negative_prompt", "blurry"},
                       {"seed", 18446744073709551615U},
                       {"scheduler", "euler"}});
  const engine::Request& request = jobs_.jobs.at(0).view.request.request;
  EXPECT_EQ(request.num_inference_steps, 7);
  EXPECT_EQ(request.guidance_scale, 2.5);
  EXPECT_EQ(request.negative_prompts, std::vector<std::string>{"blurry"});
  EXPECT_EQ(request.seed, 18446744073709551615U);
  EXPECT_EQ(request.scheduler, "euler");
}

TEST_F(OpenAiImages, WhatHasNoEffectIsNamed) {
  const auto exchange = server_.post(kPath, {{"prompt", "a"},
                                             {"quality", "hd"},
                                             {"style", "vivid"},
                                             {"user", "u"},
                                             {"frobnicate", 1},
                                             {"background", "opaque"},
                                             {"moderation", "low"},
                                             {"device", "cuda"},
                                             {"image", "/etc/passwd"}});
  jobs_.jobs[0].view.warnings = {"device is unknown and has no effect", "of the job"};
  jobs_.succeed(0, {"x"});
  const Json warnings = exchange->json()["warnings"];
  EXPECT_EQ(warnings.size(), 6U) << warnings;
  EXPECT_EQ(warnings.back(), "of the job");
  EXPECT_NE(warnings.dump().find("frobnicate is unknown"), std::string::npos);
  EXPECT_NE(warnings.dump().find("device is unknown"), std::string::npos);
  EXPECT_TRUE(jobs_.jobs[0].view.request.request.images.empty());
  EXPECT_TRUE(jobs_.jobs[0].view.request.request.device.is_cpu());
}

TEST_F(OpenAiImages, MistakesNameTheirField) {
  EXPECT_EQ(error_of(*server_.post(kPath, Json::object())), "400 missing_required_parameter prompt");
  EXPECT_EQ(refusal({{"prompt", 3}}), "400 invalid_value prompt");
  EXPECT_EQ(refusal({{"prompt", std::string(200'000, 'x')}}), "400 invalid_value prompt");
  EXPECT_EQ(refusal({{"model", "dall-e-3"}}), "404 model_not_found model");
  EXPECT_EQ(refusal({{"n", 0}}), "400 invalid_value n");
  EXPECT_EQ(refusal({{"n", "2"}}), "400 invalid_value n");
  EXPECT_EQ(refusal({{"n", 11}}), "400 invalid_value n");
  for (const char* const size : {"64", "64x", "x64", "0x64", "64x64x", "-1x1", "99999999999999999999x1"})
    EXPECT_EQ(refusal({{"size", size}}), "400 invalid_value size") << size;
  EXPECT_EQ(refusal({{"output_format", "gif"}}), "400 invalid_value output_format");
  EXPECT_EQ(refusal({{"output_format", "jpeg"}, {"output_compression", 50}}),
            "400 unsupported_value output_compression");
  EXPECT_EQ(refusal({{"background", "transparent"}}), "400 unsupported_value background");
  EXPECT_EQ(refusal({{"partial_images", 2}}), "400 invalid_value partial_images");
  EXPECT_EQ(refusal({{"stream", true}, {"partial_images", 4}}), "400 invalid_value partial_images");
  EXPECT_EQ(refusal({{"num_inference_steps", 0}}), "400 invalid_value num_inference_steps");
  EXPECT_EQ(refusal({{"guidance_scale", "high"}}), "400 invalid_value guidance_scale");
  const Json body = {{"prompt", "a"}, {"num_inference_steps", 0}};
  EXPECT_EQ(server_.post(kPath, body)->json()["error"]["message"],
            "'num_inference_steps' is wrong: must be 1 or more, got 0");
  EXPECT_TRUE(jobs_.jobs.empty());
}

TEST_F(OpenAiImages, BodiesMustBeFiniteJson) {
  for (const char* const body : {"", "[]", "{", "{\"prompt\": NaN}", "{\"prompt\": \"\xff\"}"}) {
    const auto exchange = server_.call("POST", kPath, body, {{"Content-Type", "application/json"}});
    EXPECT_EQ(error_of(*exchange), "400 invalid_json null") << body;
  }
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  EXPECT_EQ(error_of(*server_.call("POST", kPath, "{\"a\":" + deep + "}")), "400 invalid_json null");
  EXPECT_EQ(error_of(*server_.call("POST", kPath, "{}", {{"Content-Type", "text/plain"}})),
            "415 unsupported_media_type null");
}

TEST_F(OpenAiImages, RefusalsAndFailuresBecomeAnswers) {
  jobs_.refusal =
      JobRefusal{.error = {"queue_full", "full", 429}, .retry_after = Seconds(2.5), .parameter = {}};
  auto exchange = server_.post(kPath, {{"prompt", "a"}});
  EXPECT_EQ(error_of(*exchange), "429 queue_full null");
  EXPECT_EQ(exchange->header("retry-after"), "3");
  EXPECT_EQ(exchange->json()["error"]["type"], "requests");
  jobs_.refusal =
      JobRefusal{.error = {"invalid_value",
                           fmt::format("[{}] no, and {} neither", field("height"), field("format")), 400},
                 .parameter = "height"};
  exchange = server_.post(kPath, {{"prompt", "a"}});
  EXPECT_EQ(error_of(*exchange), "400 invalid_value size");
  EXPECT_EQ(exchange->json()["error"]["message"], "[size: height] no, and output_format neither");
  jobs_.refusal.reset();
  exchange = server_.post(kPath, {{"prompt", "a"}});
  jobs_.end(0, JobState::kFailed, JobError{"out_of_memory", "too large", 500});
  EXPECT_EQ(error_of(*exchange), "500 out_of_memory null");
  EXPECT_EQ(exchange->header("x-should-retry"), "false");
}

TEST_F(OpenAiImages, AClientThatGoesIsNotWaitedFor) {
  const auto exchange = server_.post(kPath, {{"prompt", "a"}});
  EXPECT_EQ(jobs_.followers(0), 1U);
  std::weak_ptr<RecordedExchange> weak = exchange;
  exchange->go();
  EXPECT_EQ(jobs_.followers(0), 0U);
  jobs_.succeed(0, {"x"});
  EXPECT_EQ(exchange->status(), 0);
  EXPECT_EQ(exchange.use_count(), 1);  // nothing keeps it
}

TEST_F(OpenAiImages, AnAnsweredClientIsLetGo) {
  const auto exchange = server_.post(kPath, {{"prompt", "a"}});
  jobs_.succeed(0, {"x"});
  EXPECT_EQ(exchange->status(), 200);
  EXPECT_EQ(exchange.use_count(), 1);
  EXPECT_EQ(jobs_.followers(0), 0U);
}

TEST_F(OpenAiImages, ARequestThatIsSentAgainGetsTheFirstOne) {
  TemporaryFolder folder;
  server_.post(kPath, {{"prompt", "a"}});
  jobs_.attached = 0;
  const auto waits = server_.post(kPath, {{"prompt", "a"}});
  EXPECT_EQ(jobs_.followers(0), 2U);
  std::ofstream(folder.path() / "0") << "stored";
  jobs_.succeed(0, {"told"}, folder.path());
  EXPECT_EQ(waits->json()["data"][0]["b64_json"], encode_base64("told"));
  auto late = server_.post(kPath, {{"prompt", "a"}});
  EXPECT_EQ(late->json()["data"][0]["b64_json"], encode_base64("stored"));
  EXPECT_EQ(late.use_count(), 1);
  late = server_.post(kPath, {{"prompt", "a"}, {"stream", true}});
  EXPECT_TRUE(late->has_begun && late->has_ended);
  EXPECT_EQ(late->events.size(), 1U);
  std::filesystem::remove(folder.path() / "0");
  late = server_.post(kPath, {{"prompt", "a"}});
  EXPECT_EQ(error_of(*late), "404 not_found null");
}

TEST_F(OpenAiImages, StreamHasPartialAndCompletedPictures) {
  const auto exchange =
      server_.post(kPath, {{"prompt", "a"}, {"n", 2}, {"stream", true}, {"partial_images", 2}});
  EXPECT_TRUE(exchange->has_begun);
  EXPECT_EQ(jobs_.jobs[0].preview_every, 20 / 3);
  for (const int64_t step : {6, 12, 18}) {
    jobs_.step(0, step);
    for (const int64_t picture : {0, 1}) jobs_.show(0, picture, fmt::format("jpeg {} {}", picture, step));
  }
  ASSERT_EQ(exchange->events.size(), 4U);
  jobs_.succeed(0, {"first", "second"});
  ASSERT_EQ(exchange->events.size(), 6U);
  EXPECT_TRUE(exchange->has_ended);
  for (const Event& event : exchange->events) {
    EXPECT_FALSE(event.id);
    const Json data = Json::parse(event.data);
    EXPECT_EQ(data.at("type"), event.name);
    for (const char* const key : {"b64_json", "created_at", "size", "quality", "background", "output_format"})
      EXPECT_TRUE(data.contains(key)) << key;
  }
  const Json partial = Json::parse(exchange->events[3].data), whole = Json::parse(exchange->events[5].data);
  EXPECT_EQ(partial["type"], "image_generation.partial_image");
  EXPECT_EQ(partial["partial_image_index"], 1);
  EXPECT_EQ(partial["image_index"], 1);
  EXPECT_EQ(partial["output_format"], "jpeg");
  EXPECT_EQ(partial["b64_json"], encode_base64("jpeg 1 12"));
  EXPECT_EQ(whole["type"], "image_generation.completed");
  EXPECT_EQ(whole["b64_json"], encode_base64("second"));
  EXPECT_EQ(whole["output_format"], "png");
  EXPECT_EQ(whole["usage"]["total_tokens"], 0);
  EXPECT_EQ(exchange.use_count(), 1);
}

TEST_F(OpenAiImages, StreamEndsWithItsError) {
  const auto exchange = server_.post(kPath, {{"prompt", "a"}, {"stream", true}});
  jobs_.end(0, JobState::kFailed, JobError{"crashed", "it crashed", 500});
  ASSERT_EQ(exchange->events.size(), 1U);
  EXPECT_EQ(exchange->events[0].name, "error");
  EXPECT_EQ(Json::parse(exchange->events[0].data)["error"]["code"], "crashed");
  EXPECT_TRUE(exchange->has_ended);
}

TEST_F(OpenAiImages, ContentIsTheOwnersFile) {
  TemporaryFolder folder;
  server_.post(kPath, {{"prompt", "a"}});
  jobs_.succeed(0, {"file"}, folder.path());
  auto exchange = server_.get("/v1/images/job0/content?index=0");
  EXPECT_EQ(exchange->status(), 200);
  EXPECT_EQ(exchange->response->file, folder.path() / "0");
  EXPECT_EQ(exchange->response->content_type, "image/png");
  EXPECT_EQ(server_.get("/v1/images/job0/content")->status(), 200);
  EXPECT_EQ(server_.get("/v1/images/job0/content?index=1")->status(), 404);
  EXPECT_EQ(server_.get("/v1/images/job0/content?index=x")->status(), 400);
  EXPECT_EQ(server_.get("/v1/images/job1/content")->status(), 404);
  EXPECT_EQ(server_.call("GET", "/v1/images/job0/content", "", {}, "other")->status(), 404);
}

TEST_F(OpenAiImages, ModelsAreListed) {
  const Json list = server_.get("/v1/models")->json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0],
            Json({{"id", "tiny"}, {"object", "model"}, {"created", 1'600'000'000}, {"owned_by", "tessera"}}));
  EXPECT_EQ(server_.get("/v1/models/tiny")->json()["id"], "tiny");
  EXPECT_EQ(error_of(*server_.get("/v1/models/other")), "404 model_not_found model");
}

TEST_F(OpenAiImages, WhatTheModelCannotIsRefusedByName) {
  EXPECT_EQ(
      error_of(*server_.call("POST", "/v1/images/edits", form({{"prompt", "a"}, {"@image", kPng}}), kForm)),
      "400 unsupported_operation null");
  EXPECT_EQ(error_of(*server_.call("POST", "/v1/images/variations", "x")), "400 unsupported_operation null");
  FakeJobs videos("tiny-open-sora");
  FakeServer server(openai_image_routes(videos, {}));
  EXPECT_EQ(error_of(*server.post(kPath, {{"prompt", "a"}})), "400 unsupported_operation null");
}

TEST(OpenAiEdits, PicturesComeAsFilesOrDataUrls) {
  FakeJobs jobs("tiny-flux2-klein");
  FakeServer server(openai_image_routes(jobs, {}));
  const auto exchange = server.call(
      "POST", "/v1/images/edits",
      form({{"prompt", "red"}, {"n", "2"}, {"@image[]", kPng}, {"@image[]", kPng + "2"}, {"stream", "true"}}),
      kForm);
  ASSERT_EQ(jobs.jobs.size(), 1U);
  EXPECT_EQ(jobs.jobs[0].view.request.images, (std::vector{kPng, kPng + "2"}));
  EXPECT_EQ(jobs.jobs[0].view.request.request.num_images_per_prompt, 2);
  jobs.succeed(0, {"a", "b"});
  EXPECT_EQ(exchange->events.at(0).name, "image_edit.completed");
  const std::string url = "data:image/png;base64," + encode_base64(kPng);
  server.post("/v1/images/edits", {{"prompt", "a"}, {"images", {{{"image_url", url}}}}});
  EXPECT_EQ(jobs.jobs.at(1).view.request.images, std::vector{kPng});
  const auto refusal = [&](const Json& body) {
    return server.post("/v1/images/edits", body)->json()["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(refusal({{"prompt", "a"}}), "images");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"images", {{{"file_id", "f"}}}}}), "images");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"images", {{{"image_url", "http://127.0.0.1/x"}}}}}), "images");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"images", {{{"image_url", "data:;base64,aGFsbG8="}}}}}), "images");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"mask", "m"}, {"images", {{{"image_url", url}}}}}), "mask");
  EXPECT_EQ(jobs.jobs.size(), 2U);
}

}  // namespace
}  // namespace tessera::serve
