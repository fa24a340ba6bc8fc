#include "engine/request.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "core/error.h"
#include "core/host.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace tessera::engine {
namespace {

TEST(Request, ReadsWhatItWrites) {
  const Model model = read_model(golden_folder("tiny-pixart"));
  Request request;
  request.prompts = {"a cat", ""};
  const Request chosen = resolve(request, model).request;
  ASSERT_TRUE(chosen.height && chosen.guidance_scale && chosen.seed && chosen.dtype);
  EXPECT_EQ(*chosen.dtype, cpu_has_bf16() ? at::kBFloat16 : at::kFloat);
  const OrderedJson json = write_fields(request_fields(), chosen);
  const Request read = read_fields(request_fields(), Json(json));
  EXPECT_EQ(write_fields(request_fields(), read), json);
  EXPECT_EQ(read.prompts, chosen.prompts);
  EXPECT_EQ(read.seed, chosen.seed);
  EXPECT_EQ(read.dtype, chosen.dtype);
  EXPECT_EQ(read.guidance_scale, chosen.guidance_scale);
}

TEST(Request, DrawsAnotherSeedEachTime) {
  const Model model = read_model(golden_folder("tiny-pixart"));
  Request request;
  request.prompts = {"a cat"};
  EXPECT_NE(resolve(request, model).request.seed, resolve(request, model).request.seed);
}

TEST(Request, TakesDiffusersArguments) {
  const Request request =
      read_fields(request_fields(), parse_json(R"({"prompt": "a cat", "output_type": "pil",
      "use_resolution_binning": false, "device": "cuda:1", "dtype": "auto", "guidance_scale": 7})",
                                               "test"));
  EXPECT_EQ(request.prompts, std::vector<std::string>{"a cat"});
  EXPECT_EQ(request.output_type, OutputType::kImage);
  EXPECT_EQ(request.resolution_binning, false);
  EXPECT_EQ(request.device, at::Device(at::kCUDA, 1));
  EXPECT_FALSE(request.dtype);
  EXPECT_EQ(request.guidance_scale, 7.0);
}

// A server asks again and again.
TEST(Request, WorkloadsKeepSamplersApart) {
  const Model model = read_model(golden_folder("tiny-pixart"));
  const auto elementwise = [&](const std::string& scheduler, const std::vector<std::string>& options,
                               int64_t steps) {
    Request request;
    request.prompts = {"a cat"};
    request.scheduler = scheduler;
    request.scheduler_options = options;
    request.num_inference_steps = steps;
    return workload(resolve(request, model), model).has_elementwise_sampler;
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(elementwise("ddim", {}, 4));
    EXPECT_FALSE(elementwise("ddim", {"thresholding=true", "sample_max_value=2"}, 4));
    EXPECT_THROW(elementwise("ddim", {"timestep_spacing=\"leading\""}, 2000), Error);
    EXPECT_THROW(elementwise("ddim", {"thresholding=\xff"}, 4), Error);
    EXPECT_THROW(elementwise("no sampler", {}, 4), Error);
  }
}

TEST(Request, RefusesWhatNoModelTakes) {
  for (const char* text : {R"({"device": "gpu"})", R"({"device": "cuda:x"})", R"({"device": "cuda:"})",
                           R"({"device": "cuda:-1"})", R"({"device": "cuda:300"})", R"({"dtype": "fp64"})",
                           R"({"output_type": "jpeg"})", R"({"height": 0})", R"({"width": 16385})",
                           R"({"num_images_per_prompt": 1025})", R"({"prompts": "a cat"})",
                           R"({"eta": -0.1})", R"({"eta": 1.1})"}) {
    EXPECT_THROW(read_fields(request_fields(), parse_json(text, "test")), Error) << text;
  }
}

// One second prompt stands for all, else each prompt has its own.
TEST(Request, PromptsMayHaveASecondOneEach) {
  const Model model = read_model(golden_folder("tiny-sdxl"));
  Request request;
  request.prompts = {"a cat", "a dog"};
  EXPECT_EQ(resolve(request, model).prompt(1).others.at(0), std::nullopt);
  request.other_prompts[0] = {"a star"};
  EXPECT_EQ(resolve(request, model).prompt(1).others.at(0), "a star");
  request.other_prompts[0] = {"a star", "a square"};
  EXPECT_EQ(resolve(request, model).prompt(0).others.at(0), "a star");
  EXPECT_EQ(resolve(request, model).prompt(1).others.at(0), "a square");
}

// The message with which `json` is refused for this model, or "accepted".
std::string refusal(const char* json, const Model& model) {
  try {
    resolve(read_fields(request_fields(), parse_json(json, "test")), model);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(Request, RefusesWhatNeitherFamilyNorSamplerUses) {
  const Model pixart = read_model(golden_folder("tiny-pixart")), xl = read_model(golden_folder("tiny-sdxl"));
  struct Case {
    const Model& with;
    const Model& without;
    const char* json;
    const char* message;
  };
  for (const auto& [with, without, json, message] :
       {Case{pixart, xl, R"({"prompt": "a", "max_sequence_length": 5})",
             "[max_sequence_length] Stable Diffusion XL does not support it, got 5; leave it out (it is an "
             "option of PixArt-alpha, PixArt-Sigma, Open-Sora 1.1, Open-Sora 1.2, Z-Image, FLUX.2 klein, "
             "FLUX.2 dev)"},
        Case{pixart, xl, R"({"prompt": "a", "use_resolution_binning": false})",
             "[use_resolution_binning: false] Stable Diffusion XL"},
        Case{pixart, xl, R"({"prompt": "a", "clean_caption": true})",
             "[clean_caption: true] Stable Diffusion XL"},
        Case{xl, pixart, R"({"prompt": "a", "prompt_2": "b"})",
             "[prompt_2] PixArt-Sigma does not support it, got [\"b\"]; leave it out (it is an option of "
             "Stable Diffusion XL)"}}) {
    EXPECT_EQ(refusal(json, with), "accepted") << json;
    EXPECT_EQ(refusal(json, without).find(message), 0U) << refusal(json, without);
  }
  const char* const ddim = R"({"prompt": "a", "scheduler": "ddim"})";
  EXPECT_EQ(resolve(read_fields(request_fields(), parse_json(ddim, "test")), xl).request.eta, 0.0);
  EXPECT_EQ(refusal(R"({"prompt": "a", "eta": 0.5, "scheduler": "ddim"})", xl), "accepted");
  EXPECT_EQ(refusal(R"({"prompt": "a", "eta": 0.5, "scheduler": "euler"})", xl),
            "[eta] EulerDiscreteScheduler does not support it, got 0.5; leave it out (it is an option of "
            "ddim, tcd)");
}

TEST(Request, LimitsTheImagesOfAllPrompts) {
  const Model model = read_model(golden_folder("tiny-pixart"));
  EXPECT_EQ(refusal(R"({"prompt": ["a", "b"], "num_images_per_prompt": 512})", model), "accepted");
  EXPECT_EQ(refusal(R"({"prompt": ["a", "b"], "num_images_per_prompt": 513})", model),
            "[num_images_per_prompt] 1026 images in one run, at most 1024");
  const Json many = {{"prompt", std::vector<std::string>(1025, "a")}};
  EXPECT_EQ(refusal(many.dump().c_str(), model), "[prompt] 1025 images in one run, at most 1024");
}

// diffusers has sizes to choose from for four sample sizes only.
TEST(Request, BinsWhereTheModelHasSizes) {
  Model model = read_model(golden_folder("tiny-pixart"));
  const char *const plain = R"({"prompt": "a"})", *const binned =
                                                      R"({"prompt": "a", "use_resolution_binning": true})";
  const auto settings = [&](const char* json) {
    return resolve(read_fields(request_fields(), parse_json(json, "test")), model);
  };
  EXPECT_EQ(settings(plain).request.resolution_binning, true);
  EXPECT_EQ(refusal(binned, model), "accepted");
  model.shape.sample_size = 16;
  EXPECT_EQ(settings(plain).request.resolution_binning, false);
  EXPECT_EQ(
      refusal(binned, model),
      "[use_resolution_binning: true] models of 128 x 128 pixels have no sizes to choose from; leave it out");
}

TEST(Request, CleansCaptionsWhereDiffusersDoes) {
  const Model pixart = read_model(golden_folder("tiny-pixart")), xl = read_model(golden_folder("tiny-sdxl"));
  const auto cleans = [](const char* json, const Model& model) {
    const Settings settings = resolve(read_fields(request_fields(), parse_json(json, "test")), model);
    EXPECT_EQ(settings.negative_prompt(0).clean_caption, settings.prompt(0).clean_caption) << json;
    return settings.prompt(0).clean_caption;
  };
  EXPECT_TRUE(cleans(R"({"prompt": "a", "negative_prompt": "b"})", pixart));
  EXPECT_FALSE(cleans(R"({"prompt": "a", "negative_prompt": "b", "clean_caption": false})", pixart));
  EXPECT_FALSE(cleans(R"({"prompt": "a"})", xl));
}

TEST(Request, RefusesCaptionsThatAreTooLongToBeCleaned) {
  const Model pixart = read_model(golden_folder("tiny-pixart")),
              video = read_model(golden_folder("tiny-open-sora"));
  const std::string most(16'384, 'a'), longer = most + "a";
  const auto refusal = [](const Json& request, const Model& model) -> std::string {
    try {
      resolve(read_fields(request_fields(), request), model);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal({{"prompt", most}, {"negative_prompt", most}}, pixart), "");
  EXPECT_EQ(
      refusal({{"prompt", {"a", longer}}}, pixart),
      "[prompt] the caption has 16385 bytes, and at most 16384 can be cleaned; use clean_caption: false");
  EXPECT_TRUE(
      refusal({{"prompt", "a"}, {"negative_prompt", longer}}, pixart).starts_with("[negative_prompt] "));
  EXPECT_TRUE(refusal({{"prompt", longer}}, video).starts_with("[prompt] the caption has "));
  EXPECT_EQ(refusal({{"prompt", longer}, {"clean_caption", false}}, pixart), "");
  // What is not encoded may have any length.
  EXPECT_EQ(refusal({{"prompt", "a"}, {"negative_prompt", longer}, {"guidance_scale", 1}}, pixart), "");
}

// And what has no effect is not among what was chosen.
TEST(Request, DropsWhatHasNoEffectAndSaysSo) {
  const Model xl = read_model(golden_folder("tiny-sdxl"));
  Request request;
  request.prompts = {"a"};
  request.negative_prompts = {"b"};
  request.other_negative_prompts[0] = {"c"};
  request.guidance_rescale = 0.5;
  request.vae_tiling = true;
  request.vae_block_size = 8;
  Settings settings = resolve(request, xl);
  EXPECT_TRUE(settings.warnings.empty());
  EXPECT_EQ(settings.request.negative_prompts, request.negative_prompts);
  EXPECT_EQ(settings.guidance_rescale, 0.5);
  EXPECT_FALSE(settings.request.max_sequence_length || settings.request.eta ||
               settings.request.resolution_binning);
  request.guidance_scale = 1;
  request.output_type = OutputType::kLatent;
  settings = resolve(request, xl);
  ASSERT_EQ(settings.warnings.size(), 2U);
  EXPECT_EQ(spell(settings.warnings[0]),
            "negative_prompt, negative_prompt_2, guidance_rescale have no effect: guidance_scale is 1, and "
            "there is guidance "
            "only above 1");
  EXPECT_EQ(spell(settings.warnings[1]),
            "vae_tiling: true, vae_block_size have no effect: output_type is latent, and nothing is decoded");
  EXPECT_TRUE(settings.request.negative_prompts.empty() &&
              settings.request.other_negative_prompts[0].empty());
  EXPECT_FALSE(settings.request.guidance_rescale || settings.request.vae_tiling ||
               settings.request.vae_block_size);
  EXPECT_TRUE(resolve(settings.request, xl).warnings.empty());
  request = {};
  request.prompts = {"a"};
  request.other_negative_prompts[0] = {"c"};
  settings = resolve(request, xl);
  ASSERT_EQ(settings.warnings.size(), 1U);
  EXPECT_EQ(
      spell(settings.warnings[0]),
      "negative_prompt_2 has no effect: there is no negative_prompt, in whose place the model takes zeros");
  EXPECT_TRUE(settings.request.other_negative_prompts[0].empty());
}

// Of the key that says so, which a folder need not have.
TEST(Request, DropsASecondNegativePromptWhereTheModelTakesZeros) {
  Request request;
  request.prompts = {"a"};
  request.other_negative_prompts[0] = {"c"};
  const char* const key = "force_zeros_for_empty_prompt";
  for (const std::optional<bool> zeros : {std::optional<bool>(), {true}, {false}}) {
    const TemporaryFolder temporary;
    const std::filesystem::path folder = temporary.path() / "model";
    std::filesystem::copy(golden_folder("tiny-sdxl"), folder, std::filesystem::copy_options::recursive);
    Json index = read_json(folder / "model_index.json");
    index.erase(key);
    if (zeros) index[key] = *zeros;
    std::ofstream(folder / "model_index.json") << index;
    EXPECT_EQ(resolve(request, read_model(folder)).warnings.empty(), zeros == false) << index;
  }
}

TEST(Request, TakesOneNegativePromptForAllOrOneForEach) {
  const Model xl = read_model(golden_folder("tiny-sdxl"));
  const auto settings_of = [&](const char* json) {
    return resolve(read_fields(request_fields(), parse_json(json, "test")), xl);
  };
  const Settings one = settings_of(R"({"prompt": ["a", "b"], "negative_prompt": "x"})");
  EXPECT_EQ(one.negative_prompt(0).text, "x");
  EXPECT_EQ(one.negative_prompt(1), one.negative_prompt(0));
  const Settings each =
      settings_of(R"({"prompt": ["a", "b"], "negative_prompt": ["x", "y"], "negative_prompt_2": ["z", ""]})");
  EXPECT_EQ(each.negative_prompt(0), (models::Prompt{.text = "x", .others = {"z"}}));
  EXPECT_EQ(each.negative_prompt(1), (models::Prompt{.text = "y", .others = {""}}));
  const Settings empty = settings_of(
      R"({"prompt": ["a", "b"], "prompt_2": "", "negative_prompt": "x", "negative_prompt_2": ""})");
  EXPECT_EQ(empty.prompt(1), (models::Prompt{.text = "b", .others = {std::nullopt}}));
  EXPECT_EQ(empty.negative_prompt(1), (models::Prompt{.text = "x", .others = {std::nullopt}}));
  EXPECT_TRUE(settings_of(R"({"prompt": "a"})").negative_prompt(0).is_absent);
  EXPECT_EQ(refusal(R"({"prompt": ["a", "b"], "negative_prompt": ["x", "y", "z"]})", xl),
            "[negative_prompt] 3 of them for 2 prompts; give one for all, or one for each");
  EXPECT_EQ(refusal(R"({"prompt": "a", "negative_prompt_2": ["x", "y"]})", xl),
            "[negative_prompt_2] 2 of them for 1 prompt; give one for all, or one for each");
}

}  // namespace
}  // namespace tessera::engine
