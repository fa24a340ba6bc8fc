#include "engine/request.h"

#include <gtest/gtest.h>

#include "core/cpu.h"
#include "core/error.h"
#include "tests/support/golden.h"

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
  EXPECT_FALSE(request.resolution_binning);
  EXPECT_EQ(request.device, at::Device(at::kCUDA, 1));
  EXPECT_FALSE(request.dtype);
  EXPECT_EQ(request.guidance_scale, 7.0);
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
  EXPECT_EQ(resolve(request, model).prompt(1).second, std::nullopt);
  request.prompts_2 = {"a star"};
  EXPECT_EQ(resolve(request, model).prompt(1).second, "a star");
  request.prompts_2 = {"a star", "a square"};
  EXPECT_EQ(resolve(request, model).prompt(0).second, "a star");
  EXPECT_EQ(resolve(request, model).prompt(1).second, "a square");
}

}  // namespace
}  // namespace tessera::engine
