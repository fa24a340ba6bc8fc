#include "serve/sdapi.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "core/image.h"
#include "core/text.h"
#include "serve/sdapi_request.h"
#include "serve/sdapi_samplers.h"
#include "serve/web_text.h"
#include "tests/serve/fake_jobs.h"

namespace tessera::serve {
namespace {

constexpr const char* kTxt2Img = "/sdapi/v1/txt2img";

class SdApi : public ::testing::Test {
 protected:
  FakeJobs jobs_{"tiny-pixart"};
  FakeServer server_{sdapi_routes(jobs_, {})};

  // "STATUS FIELD" of a refusal in the form of the validation there, else "STATUS".
  std::string refusal(const Json& body) {
    const auto exchange = server_.post(kTxt2Img, body);
    const Json answer = exchange->json();
    EXPECT_TRUE(jobs_.jobs.empty()) << body;
    if (!answer.is_object() || !answer.contains("detail")) return "none";
    if (!answer["detail"].is_array()) return std::to_string(exchange->status());
    EXPECT_EQ(answer["detail"][0]["loc"][0], "body");
    return fmt::format("{} {}", exchange->status(), answer["detail"][0]["loc"][1].get<std::string>());
  }
  Json state() { return server_.get("/sdapi/v1/progress")->json(); }
};

TEST_F(SdApi, EachPictureIsAJobWithTheNextSeed) {
  const auto exchange = server_.post(kTxt2Img, {{"prompt", "a red circle"},
                                                {"negative_prompt", "blurry"},
                                                {"batch_size", 2},
                                                {"n_iter", 1},
                                                {"seed", 41},
                                                {"steps", 10},
                                                {"cfg_scale", 3.5},
                                                {"width", 96},
                                                {"height", 64},
                                                {"sampler_name", "Euler"},
                                                {"styles", Json::array()},
                                                {"override_settings", nullptr}});
  ASSERT_EQ(jobs_.jobs.size(), 2U);
  const JobRequest& job = jobs_.jobs[1].view.request;
  EXPECT_EQ(job.request.seed, 42U);
  EXPECT_EQ(job.request.num_inference_steps, 10);
  EXPECT_EQ(job.request.guidance_scale, 3.5);
  EXPECT_EQ(job.request.scheduler, "euler");
  EXPECT_EQ(job.request.negative_prompts, std::vector<std::string>{"blurry"});
  EXPECT_TRUE(job.is_awaited);
  EXPECT_FALSE(job.is_stored);
  jobs_.succeed(1, {"second"});
  EXPECT_EQ(exchange->status(), 0);
  jobs_.succeed(0, {"first"});
  ASSERT_EQ(exchange->status(), 200);
  const Json answer = exchange->json();
  EXPECT_EQ(answer["images"], Json({encode_base64("first"), encode_base64("second")}));
  EXPECT_EQ(answer["parameters"]["seed"], 41);
  EXPECT_EQ(answer["parameters"]["styles"], Json::array());
  ASSERT_TRUE(answer["info"].is_string());
  const Json info = Json::parse(answer["info"].get<std::string>());
  EXPECT_EQ(info["all_seeds"], Json({41, 42}));
  EXPECT_EQ(info["width"], 96);
  EXPECT_EQ(info["sampler_name"], "Euler");
  EXPECT_EQ(info["infotexts"][1],
            "a red circle\nNegative prompt: blurry\nSteps: 10, Sampler: Euler, Schedule type: Automatic, CFG "
            "scale: 3.5, Seed: 42, Size: 96x64, Model: tiny, Version: Tessera " TESSERA_VERSION);
  EXPECT_EQ(info["job_timestamp"], "20231114221320");
  for (const char* const key : {"prompt",
                                "all_prompts",
                                "negative_prompt",
                                "all_negative_prompts",
                                "seed",
                                "subseed",
                                "all_subseeds",
                                "subseed_strength",
                                "height",
                                "cfg_scale",
                                "steps",
                                "batch_size",
                                "restore_faces",
                                "face_restoration_model",
                                "sd_model_name",
                                "sd_model_hash",
                                "sd_vae_name",
                                "sd_vae_hash",
                                "seed_resize_from_w",
                                "seed_resize_from_h",
                                "denoising_strength",
                                "extra_generation_params",
                                "index_of_first_image",
                                "styles",
                                "clip_skip",
                                "is_using_inpainting_conditioning",
                                "version"})
    EXPECT_TRUE(info.contains(key)) << key;
  EXPECT_FALSE(info.contains("warnings"));
  EXPECT_EQ(exchange.use_count(), 1);
}

TEST_F(SdApi, SeedsHaveTheirBounds) {
  const auto seed_of = [&](const Json& seed) {
    server_.post(kTxt2Img, {{"seed", seed}});
    return *jobs_.jobs.back().view.request.request.seed;
  };
  EXPECT_EQ(seed_of(std::numeric_limits<uint64_t>::max()), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(seed_of("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(seed_of(5.0), 5U);
  EXPECT_EQ(seed_of(0x1p60), uint64_t{1} << 60);
  for (const Json& random : {Json(-1), Json(-1.0), Json("-1"), Json("")})
    EXPECT_LE(seed_of(random), 0xffffffffU);
  for (const Json& wrong : {Json(-2), Json(0x1p64), Json(1.5), Json("x"), Json(true)}) {
    const auto exchange = server_.post(kTxt2Img, {{"seed", wrong}});
    ASSERT_EQ(exchange->status(), 422) << wrong;
    const std::string message = exchange->json()["detail"][0]["msg"], got = wrong.dump();
    EXPECT_EQ(message,
              "'seed' must be an integer from 0 to 18446744073709551615, or -1 for a random one, got " + got);
  }
}

TEST_F(SdApi, WhatIsLeftOutIsTheModels) {
  const auto exchange = server_.post(kTxt2Img, {{"prompt", nullptr}, {"seed", ""}, {"send_images", false}});
  const engine::Request& request = jobs_.jobs.at(0).view.request.request;
  EXPECT_EQ(request.prompts, std::vector<std::string>{""});
  EXPECT_FALSE(request.width || request.scheduler);
  EXPECT_LE(*request.seed, 0xffffffffU);
  jobs_.succeed(0, {"x"});
  EXPECT_EQ(exchange->json()["images"], Json::array());
  EXPECT_EQ(Json::parse(exchange->json()["info"].get<std::string>())["sampler_name"], "DPM++ 2M");
}

TEST_F(SdApi, WhatWouldChangeThePictureIsRefused) {
  for (const char* const flag : {"restore_faces", "tiling", "enable_hr"})
    EXPECT_EQ(refusal({{flag, true}}), fmt::format("422 {}", flag));
  for (const char* const number : {"subseed_strength", "s_churn", "s_tmin", "s_tmax", "seed_resize_from_h"})
    EXPECT_EQ(refusal({{number, 0.5}}), fmt::format("422 {}", number));
  EXPECT_EQ(refusal({{"s_noise", 0.9}}), "422 s_noise");
  EXPECT_EQ(refusal({{"styles", {"painting"}}}), "422 styles");
  EXPECT_EQ(refusal({{"script_name", "x/y/z plot"}}), "422 script_name");
  EXPECT_EQ(refusal({{"refiner_checkpoint", "xl"}}), "422 refiner_checkpoint");
  EXPECT_EQ(refusal({{"alwayson_scripts", {{"ControlNet", {{"args", {{{"model", "m"}}}}}}}}}),
            "422 alwayson_scripts");
  EXPECT_EQ(refusal({{"prompt", "a <lora:b:1> c"}}), "422 prompt");
  EXPECT_EQ(refusal({{"steps", 0}}), "422 steps");
  EXPECT_EQ(refusal({{"steps", "many"}}), "422 steps");
  EXPECT_EQ(refusal({{"seed", "x"}}), "422 seed");
  EXPECT_EQ(refusal({{"batch_size", 17}}), "422 batch_size");
  EXPECT_EQ(refusal({{"batch_size", 6}, {"n_iter", 3}}), "422 n_iter");
  EXPECT_EQ(refusal({{"sampler_name", "DPM fast"}}), "404");
  EXPECT_EQ(refusal({{"sampler_name", "Euler"}, {"scheduler", "kl_optimal"}}), "422 scheduler");
  EXPECT_EQ(refusal({{"sampler_name", "Euler a"}, {"scheduler", "karras"}}), "422 scheduler");
  EXPECT_EQ(refusal({{"sampler_name", "Euler a"}, {"eta", 0.5}}), "422 eta");
  EXPECT_EQ(refusal({{"override_settings", {{"sd_model_checkpoint", "other"}}}}), "404");
  EXPECT_EQ(refusal({{"override_settings", {{"sd_vae", "other.pt"}}}}), "422 sd_vae");
}

// As webuiapi and SillyTavern send them.
TEST_F(SdApi, ClientsSendMoreThanTheyNeed) {
  const Json body = Json::parse(R"({
      "enable_hr": false, "hr_scale": 2, "hr_upscaler": "Latent", "hr_second_pass_steps": 0,
      "denoising_strength": 0.7, "firstphase_width": 0, "prompt": "a (red:1.2) cat", "styles": [], "seed": -1,
      "subseed": -1, "subseed_strength": 0.0, "seed_resize_from_h": 0, "seed_resize_from_w": -1, "eta": 1.0,
      "restore_faces": false, "tiling": false, "do_not_save_samples": false, "s_churn": 0, "s_tmax": 0,
      "s_tmin": 0, "s_noise": 1, "override_settings": {"CLIP_stop_at_last_layers": 2, "samples_format": "jpg",
      "sd_model_checkpoint": "tiny.safetensors [0123456789]", "filter_nsfw": true}, "sampler_name": "Euler a",
      "sampler_index": "Euler a", "scheduler": "automatic", "script_args": [], "send_images": true,
      "save_images": true, "alwayson_scripts": {"ADetailer": {"args": [false]}, "ControlNet": {"args": []}},
      "url": "http://x", "auth": "", "newer": 1})");
  const auto exchange = server_.post(kTxt2Img, body);
  ASSERT_EQ(jobs_.jobs.size(), 1U) << exchange->response->body;
  EXPECT_EQ(jobs_.jobs[0].view.request.request.scheduler, "euler-a");
  EXPECT_EQ(jobs_.jobs[0].view.request.suffix, ".jpg");
  EXPECT_FALSE(jobs_.jobs[0].view.request.request.clip_skip);
  jobs_.jobs[0].view.warnings = {"of the job"};
  jobs_.succeed(0, {"x"});
  const std::string warnings = Json::parse(exchange->json()["info"].get<std::string>())["warnings"].dump();
  for (const char* const word : {"weights of words", "CLIP_stop_at_last_layers", "filter_nsfw", "save_images",
                                 "newer is unknown", "of the job"})
    EXPECT_NE(warnings.find(word), std::string::npos) << word << " in " << warnings;
  EXPECT_EQ(warnings.find("alwayson"), std::string::npos);
}

TEST_F(SdApi, ClipSkipCountsFromOneThere) {
  FakeJobs jobs("tiny-sd");
  FakeServer server(sdapi_routes(jobs, {}));
  server.post(kTxt2Img, {{"override_settings", {{"CLIP_stop_at_last_layers", 2}}}});
  EXPECT_EQ(jobs.jobs.at(0).view.request.request.clip_skip, 1);
}

TEST_F(SdApi, SamplersHaveTheirNamesThere) {
  const ModelTraits model = {.name = "m", .scheduler = "PNDMScheduler"};
  const auto choose = [&](const char* sampler, const std::optional<std::string>& schedule = {}) {
    const SamplerChoice choice = choose_sampler(sampler, schedule, model);
    return fmt::format("{} {} {} {}", choice.scheduler.value_or("-"), fmt::join(choice.options, ","),
                       choice.sampler, choice.schedule);
  };
  EXPECT_EQ(choose("DPM++ 2M"), "dpm++-karras  DPM++ 2M Karras");
  EXPECT_EQ(choose("DPM++ 2M", "normal"), "dpm++ timestep_spacing=linspace DPM++ 2M Normal");
  EXPECT_EQ(choose("DPM++ 2M Karras"), "dpm++-karras  DPM++ 2M Karras");
  EXPECT_EQ(choose("dpm++ 2m sde exponential"), "dpm++-sde-exponential  DPM++ 2M SDE Exponential");
  EXPECT_EQ(choose("k_dpmpp_2m", "SGM Uniform"), "dpm++ timestep_spacing=trailing DPM++ 2M SGM Uniform");
  EXPECT_EQ(choose("Euler", "Beta"), "euler-beta  Euler Beta");
  EXPECT_EQ(choose("k_euler_ancestral"), "euler-a  Euler a Automatic");
  EXPECT_EQ(choose("PLMS", "Karras"), "pndm  PLMS Automatic");
  EXPECT_EQ(choose("deis"), "deis  deis Automatic");
  const SamplerChoice own = choose_sampler({}, "automatic", model);
  EXPECT_FALSE(own.scheduler);
  EXPECT_EQ(own.sampler, "PLMS");
  const ModelTraits flow = {.name = "m", .scheduler = "FlowMatchEulerDiscreteScheduler"};
  EXPECT_EQ(choose_sampler("Euler", "Simple", flow).scheduler, "flow-euler");
  EXPECT_TRUE(choose_sampler("Euler", "Simple", flow).options.empty());
  EXPECT_THROW(choose_sampler("Euler a", {}, flow), ApiError);
}

TEST_F(SdApi, ProgressIsOfTheTask) {
  EXPECT_EQ(state()["progress"], 0.0);
  EXPECT_EQ(state()["state"]["job_count"], 0);
  const auto exchange = server_.post(kTxt2Img, {{"batch_size", 2}, {"force_task_id", "mine"}});
  EXPECT_EQ(state()["progress"], 0.0);  // it waits
  EXPECT_EQ(state()["state"]["job_count"], 2);
  const auto internal = [&] { return server_.post("/internal/progress", {{"id_task", "mine"}})->json(); };
  EXPECT_EQ(internal()["queued"], true);
  jobs_.step(0, 10);
  jobs_.previews["job0"] = "jpeg";
  const Json running = state();
  EXPECT_NEAR(running["progress"].get<double>(), 0.26, 1e-9);
  EXPECT_EQ(running["state"]["sampling_step"], 10);
  EXPECT_EQ(running["state"]["sampling_steps"], 20);
  EXPECT_EQ(running["current_image"], encode_base64("jpeg"));
  EXPECT_EQ(running["current_task"], "mine");
  for (const std::string skips : {"true", "True", "1"})
    EXPECT_EQ(server_.get("/sdapi/v1/progress?skip_current_image=" + skips)->json()["current_image"],
              nullptr);
  EXPECT_EQ(server_.call("GET", "/sdapi/v1/progress", "", {}, "other")->json()["progress"], 0.0);
  EXPECT_EQ(internal()["active"], true);
  EXPECT_EQ(internal()["live_preview"], "data:image/jpeg;base64," + encode_base64("jpeg"));
  jobs_.succeed(0, {"x"});
  EXPECT_EQ(state()["state"]["job_no"], 1);
  jobs_.succeed(1, {"y"});
  EXPECT_EQ(state()["progress"], 0.0);
  EXPECT_EQ(internal()["completed"], true);
  EXPECT_EQ(server_.post("/internal/progress", {{"id_task", "other"}})->json()["completed"], false);
}

TEST_F(SdApi, InterruptAnswersWithWhatIsThere) {
  const auto exchange = server_.post(kTxt2Img, {{"batch_size", 3}});
  const auto waiting = server_.post(kTxt2Img, {{"prompt", "waits"}});
  jobs_.step(0, 1);
  jobs_.succeed(0, {"x"});
  jobs_.step(1, 1);
  const auto interrupted = server_.call("POST", "/sdapi/v1/interrupt");
  EXPECT_EQ(interrupted->json(), Json::object());
  ASSERT_EQ(exchange->status(), 200);
  EXPECT_EQ(exchange->json()["images"], Json({encode_base64("x")}));
  EXPECT_EQ(Json::parse(exchange->json()["info"].get<std::string>())["all_seeds"].size(), 1U);
  EXPECT_EQ(jobs_.cancelled, (std::vector<std::string>{"job1", "job2"}));
  EXPECT_EQ(waiting->status(), 0);
}

// Clients read the first entries of the lists, and the sizes.
TEST_F(SdApi, ATaskThatIsInterruptedBeforeAPictureSaysWhatTheyWouldHaveBeen) {
  const auto exchange =
      server_.post(kTxt2Img, {{"prompt", "a cat"}, {"batch_size", 2}, {"seed", 7}, {"width", 96}});
  jobs_.step(0, 1);
  server_.call("POST", "/sdapi/v1/interrupt");
  ASSERT_EQ(exchange->status(), 200);
  const Json answer = exchange->json();
  EXPECT_EQ(answer["images"], Json::array());
  EXPECT_EQ(answer["parameters"]["steps"], 20);
  EXPECT_EQ(answer["parameters"]["cfg_scale"], 4.5);
  EXPECT_EQ(answer["parameters"]["width"], 96);
  EXPECT_EQ(answer["parameters"]["height"], 48);
  const Json info = Json::parse(answer["info"].get<std::string>());
  EXPECT_EQ(info["all_seeds"], Json({7, 8}));
  EXPECT_EQ(info["all_prompts"], Json({"a cat", "a cat"}));
  EXPECT_EQ(info["width"], 96);
  EXPECT_EQ(info["height"], 48);
  EXPECT_EQ(info["steps"], 20);
  EXPECT_EQ(info["infotexts"].size(), 2U);
  EXPECT_NE(info["infotexts"][0].get<std::string>().find("Steps: 20, "), std::string::npos);
  EXPECT_NE(info["infotexts"][0].get<std::string>().find("Size: 96x48"), std::string::npos);
}

TEST_F(SdApi, SkipEndsOnePicture) {
  const auto exchange = server_.post(kTxt2Img, {{"batch_size", 2}});
  jobs_.step(0, 1);
  EXPECT_EQ(server_.call("POST", "/sdapi/v1/skip")->json(), nullptr);
  EXPECT_EQ(jobs_.cancelled, std::vector<std::string>{"job0"});
  EXPECT_EQ(exchange->status(), 0);
  jobs_.succeed(1, {"y"});
  EXPECT_EQ(exchange->json()["images"], Json({encode_base64("y")}));
  const Json info = Json::parse(exchange->json()["info"].get<std::string>());
  EXPECT_EQ(info["all_seeds"], Json::array({info["seed"]}));
  EXPECT_EQ(info["seed"], *jobs_.jobs.at(1).view.request.request.seed);
}

TEST_F(SdApi, OneFailureEndsTheTask) {
  const auto exchange = server_.post(kTxt2Img, {{"batch_size", 2}});
  jobs_.end(0, JobState::kFailed, JobError{"out_of_memory", "too large", 500});
  EXPECT_EQ(exchange->status(), 500);
  EXPECT_EQ(exchange->json()["errors"], "too large");
  EXPECT_EQ(jobs_.cancelled, std::vector<std::string>{"job1"});
  EXPECT_EQ(exchange.use_count(), 1);
  jobs_.refusal =
      JobRefusal{.error = {"invalid_value", fmt::format("[{}] too many", field("num_inference_steps")), 400},
                 .parameter = "num_inference_steps"};
  const Json detail = server_.post(kTxt2Img, Json::object())->json()["detail"][0];
  EXPECT_EQ(detail["loc"][1], "steps");
  EXPECT_EQ(detail["msg"], "[steps] too many");
}

TEST_F(SdApi, AClientThatGoesIsNotWaitedFor) {
  const auto exchange = server_.post(kTxt2Img, {{"batch_size", 2}});
  exchange->go();
  EXPECT_EQ(jobs_.followers(0) + jobs_.followers(1), 0U);
  EXPECT_EQ(exchange.use_count(), 1);
  EXPECT_EQ(state()["state"]["job_count"], 0);
}

TEST_F(SdApi, OptionsCanBeReadAndSentBack) {
  const Json options = server_.get("/sdapi/v1/options")->json();
  EXPECT_EQ(options["sd_model_checkpoint"], server_.get("/sdapi/v1/sd-models")->json()[0]["title"]);
  EXPECT_EQ(server_.post("/sdapi/v1/options", options)->status(), 200);
  EXPECT_EQ(server_.post("/sdapi/v1/options", {{"sd_model_checkpoint", "tiny.safetensors"}})->status(), 200);
  EXPECT_EQ(server_.post("/sdapi/v1/options", {{"sd_model_checkpoint", "other"}})->status(), 404);
  EXPECT_EQ(server_.post("/sdapi/v1/options", {{"sd_vae", "x"}})->status(), 422);
  EXPECT_EQ(server_.post("/sdapi/v1/options", {{"unheard_of", 1}})->status(), 422);
}

TEST_F(SdApi, ListsAreThere) {
  for (const char* const path :
       {"samplers", "schedulers", "sd-models", "upscalers", "latent-upscale-modes", "loras", "hypernetworks",
        "face-restorers", "realesrgan-models", "prompt-styles", "sd-vae", "sd-modules", "extensions"})
    EXPECT_TRUE(server_.get(fmt::format("/sdapi/v1/{}", path))->json().is_array()) << path;
  for (const char* const path : {"embeddings", "scripts", "cmd-flags", "memory"})
    EXPECT_TRUE(server_.get(fmt::format("/sdapi/v1/{}", path))->json().is_object()) << path;
  EXPECT_GT(server_.get("/sdapi/v1/memory")->json()["ram"]["total"], 0);
  EXPECT_EQ(server_.call("POST", "/sdapi/v1/refresh-checkpoints")->json(), nullptr);
  EXPECT_EQ(server_.get("/sdapi/v1/samplers")->json()[0]["name"], "DPM++ 2M");
  const auto refused = server_.post("/sdapi/v1/img2img", {{"init_images", {"x"}}});
  EXPECT_EQ(refused->status(), 501);
  EXPECT_NE(refused->json()["detail"].dump().find("img2img"), std::string::npos);
}

TEST_F(SdApi, PngInfoReadsText) {
  Image image = {.height = 1, .width = 1, .pixels = {1, 2, 3}};
  const std::string text = "a cat\nNegative prompt: x\nSteps: 2, Sampler: Euler, Model: \"a,b\"";
  const std::string png = encode_png(image, {{"parameters", text}, {"other", "o"}});
  const Json info =
      server_.post("/sdapi/v1/png-info", {{"image", "data:image/png;base64," + encode_base64(png)}})->json();
  EXPECT_EQ(info["info"], text);
  EXPECT_EQ(info["items"]["other"], "o");
  EXPECT_EQ(info["parameters"]["Prompt"], "a cat");
  EXPECT_EQ(info["parameters"]["Negative prompt"], "x");
  EXPECT_EQ(info["parameters"]["Sampler"], "Euler");
  EXPECT_EQ(info["parameters"]["Model"], "\"a,b\"");
  EXPECT_EQ(server_.post("/sdapi/v1/png-info", {{"image", "!"}})->status(), 422);
  EXPECT_EQ(server_.post("/sdapi/v1/png-info", {{"image", encode_base64("no PNG")}})->status(), 422);
}

}  // namespace
}  // namespace tessera::serve
