#include "serve/openai_videos.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "serve/web_text.h"
#include "tests/serve/fake_jobs.h"
#include "tests/support/temporary_folder.h"

namespace tessera::serve {
namespace {

class OpenAiVideos : public ::testing::Test {
 protected:
  FakeJobs jobs_{"tiny-open-sora"};
  FakeServer server_{openai_video_routes(jobs_, {})};

  std::string refusal(Json body) {
    if (!body.contains("prompt")) body["prompt"] = "a";
    const Json error = server_.post("/v1/videos", body)->json().at("error");
    return error.at("param").is_null() ? error.at("code").get<std::string>()
                                       : error.at("param").get<std::string>();
  }
};

TEST_F(OpenAiVideos, CreationTakesFormsAndJson) {
  const auto exchange = server_.call("POST", "/v1/videos",
                                     form({{"prompt", "a boat"},
                                           {"seconds", "4"},
                                           {"size", "64x48"},
                                           {"num_inference_steps", "5"},
                                           {"@input_reference", kPng},
                                           {"extra[a]", "b"}}),
                                     kForm);
  ASSERT_EQ(exchange->status(), 200) << exchange->response->body;
  const JobRequest& job = jobs_.jobs.at(0).view.request;
  EXPECT_EQ(job.api, "videos");
  EXPECT_FALSE(job.is_awaited);
  EXPECT_TRUE(job.is_stored);
  EXPECT_EQ(job.request.prompts, std::vector<std::string>{"a boat"});
  EXPECT_EQ(job.request.video.num_frames, 96);  // at 24 a second
  EXPECT_EQ(job.request.num_inference_steps, 5);
  EXPECT_EQ(job.request.width, 64);
  EXPECT_EQ(job.references, std::vector{kPng});
  EXPECT_EQ(job.request.video.mask_strategies, std::vector<std::string>{"0"});
  const Json video = exchange->json();
  EXPECT_EQ(video["object"], "video");
  EXPECT_EQ(video["status"], "queued");
  EXPECT_EQ(video["seconds"], "4");
  EXPECT_EQ(video["size"], "64x48");
  EXPECT_EQ(video["prompt"], "a boat");
  EXPECT_EQ(video["warnings"].size(), 1U);
  for (const char* const key : {"id", "model", "progress", "created_at", "completed_at", "expires_at",
                                "remixed_from_video_id", "error"})
    EXPECT_TRUE(video.contains(key)) << key;
  EXPECT_FALSE(exchange->header("openai-poll-after-ms").empty());
  server_.post("/v1/videos", {{"prompt", "a"}, {"seconds", 2}, {"fps", 10}});
  EXPECT_EQ(jobs_.jobs.at(1).view.request.request.video.num_frames, 20);
  server_.post("/v1/videos", {{"prompt", "a"}});
  EXPECT_FALSE(jobs_.jobs.at(2).view.request.request.video.num_frames);  // the model's
}

TEST_F(OpenAiVideos, AFormThatIsSentAgainIsKnown) {
  const auto hash = [&](const std::string& body, const std::string& edge) {
    server_.call(
        "POST", "/v1/videos", body,
        {{"Content-Type", "multipart/form-data; boundary=" + edge}, {"x-stainless-retry-count", "1"}});
    EXPECT_TRUE(jobs_.jobs.back().view.request.is_resend);
    return jobs_.jobs.back().view.request.body_hash;
  };
  const std::string body = form({{"prompt", "a"}, {"@input_reference", kPng}});
  std::string parted_otherwise = body;
  for (size_t at = 0; (at = parted_otherwise.find("edge", at)) != std::string::npos;)
    parted_otherwise.replace(at, 4, "limit");
  EXPECT_EQ(hash(body, "edge"), hash(parted_otherwise, "limit"));
  EXPECT_NE(hash(body, "edge"), hash(form({{"prompt", "b"}, {"@input_reference", kPng}}), "edge"));
  EXPECT_NE(hash(body, "edge"), hash(form({{"prompt", "a"}, {"@input_reference", kPng + "2"}}), "edge"));
}

TEST_F(OpenAiVideos, MistakesNameTheirField) {
  EXPECT_EQ(refusal({{"prompt", nullptr}}), "prompt");
  EXPECT_EQ(refusal({{"seconds", "soon"}}), "seconds");
  EXPECT_EQ(refusal({{"seconds", "-4"}}), "seconds");
  EXPECT_EQ(refusal({{"seconds", "4"}, {"num_frames", 17}}), "seconds");
  EXPECT_EQ(refusal({{"size", "large"}}), "size");
  EXPECT_EQ(refusal({{"model", "sora-2"}}), "model");
  EXPECT_EQ(refusal({{"input_reference", {{"file_id", "f"}}}}), "input_reference");
  EXPECT_EQ(refusal({{"input_reference", {{"image_url", "http://127.0.0.1/x.png"}}}}), "input_reference");
  jobs_.refusal =
      JobRefusal{.error = {"invalid_value", fmt::format("[{}] is cut off", field("reference")), 400},
                 .parameter = "reference"};
  const Json error = server_.post("/v1/videos", {{"prompt", "a"}})->json()["error"];
  EXPECT_EQ(error["param"], "input_reference");
  EXPECT_EQ(error["message"], "[input_reference] is cut off");
  jobs_.refusal.reset();
  EXPECT_TRUE(jobs_.jobs.empty());
  for (const char* const path : {"/v1/videos/edits", "/v1/videos/extensions", "/v1/videos/job0/remix"})
    EXPECT_EQ(server_.post(path, {{"prompt", "a"}})->json()["error"]["code"], "unsupported_operation");
  FakeJobs pictures("tiny-pixart");
  FakeServer server(openai_video_routes(pictures, {}));
  EXPECT_EQ(server.post("/v1/videos", {{"prompt", "a"}})->json()["error"]["code"], "unsupported_operation");
}

TEST_F(OpenAiVideos, AVideoGoesThroughItsStates) {
  TemporaryFolder folder;
  server_.post("/v1/videos", {{"prompt", "a"}, {"num_inference_steps", 8}});
  auto content = server_.get("/v1/videos/job0/content");
  EXPECT_EQ(content->status(), 409);
  EXPECT_EQ(content->header("x-should-retry"), "false");
  jobs_.step(0, 6);
  Json video = server_.get("/v1/videos/job0")->json();
  EXPECT_EQ(video["status"], "in_progress");
  EXPECT_EQ(video["progress"], 75);
  jobs_.succeed(0, {"mp4"}, folder.path());
  const auto exchange = server_.get("/v1/videos/job0");
  EXPECT_EQ(exchange->json()["status"], "completed");
  EXPECT_EQ(exchange->json()["progress"], 100);
  EXPECT_EQ(exchange->json()["completed_at"], 1'700'000'003);
  EXPECT_TRUE(exchange->header("openai-poll-after-ms").empty());
  content = server_.get("/v1/videos/job0/content?variant=video");
  EXPECT_EQ(content->response->file, folder.path() / "0");
  EXPECT_EQ(server_.get("/v1/videos/job0/content?variant=thumbnail")->status(), 400);
  server_.post("/v1/videos", {{"prompt", "a"}});
  jobs_.end(1, JobState::kCancelled, JobError{"cancelled", "was cancelled", 409});
  video = server_.get("/v1/videos/job1")->json();
  EXPECT_EQ(video["status"], "failed");
  EXPECT_EQ(video["error"]["code"], "cancelled");
  EXPECT_EQ(video["completed_at"], nullptr);
  EXPECT_EQ(server_.get("/v1/videos/job1/content")->status(), 404);
  EXPECT_EQ(server_.call("GET", "/v1/videos/job0", "", {}, "other")->status(), 404);
}

TEST_F(OpenAiVideos, ListsHavePages) {
  for (int i = 0; i < 3; ++i) server_.post("/v1/videos", {{"prompt", "a"}});
  Json list = server_.get("/v1/videos?limit=2")->json();
  EXPECT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(list["first_id"], "job2");
  EXPECT_EQ(list["last_id"], "job1");
  EXPECT_EQ(list["has_more"], true);
  list = server_.get("/v1/videos?limit=2&after=job1")->json();
  EXPECT_EQ(list["data"].size(), 1U);
  EXPECT_EQ(list["has_more"], false);
  list = server_.get("/v1/videos?order=asc")->json();
  EXPECT_EQ(list["first_id"], "job0");
  EXPECT_EQ(server_.get("/v1/videos?limit=101")->status(), 400);
  EXPECT_EQ(server_.get("/v1/videos?order=up")->status(), 400);
  EXPECT_EQ(server_.call("GET", "/v1/videos", "", {}, "other")->json()["first_id"], nullptr);
}

TEST_F(OpenAiVideos, DeletedVideosAreForgotten) {
  server_.post("/v1/videos", {{"prompt", "a"}});
  const Json answer = server_.call("DELETE", "/v1/videos/job0")->json();
  EXPECT_EQ(answer, Json({{"id", "job0"}, {"object", "video.deleted"}, {"deleted", true}}));
  EXPECT_EQ(jobs_.removed, std::vector<std::string>{"job0"});
  EXPECT_EQ(server_.call("DELETE", "/v1/videos/job7")->status(), 404);
}

}  // namespace
}  // namespace tessera::serve
