#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>

#include "core/error.h"
#include "models/qwen3.h"
#include "ops/linear.h"
#include "tests/support/golden.h"

namespace tessera::models {
namespace {

Qwen3Config read_qwen3(const Json& json) {
  return Qwen3Config(JsonConfig(json, "config.json"));
}

TEST(Qwen3Config, RefusesWhatItCannotRun) {
  const auto refusal = [](const std::string& json) {
    try {
      read_qwen3(parse_json(json, "config.json"));
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3);
      return std::string(error.what());
    }
  };
  for (const char* json :
       {"{}", R"({"use_sliding_window":true,"sliding_window":null,"max_window_layers":2})",
        R"({"use_sliding_window":true,"sliding_window":64,"max_window_layers":32})",
        R"({"use_sliding_window":false,"sliding_window":64,"max_window_layers":0})", R"({"rope_scaling":{}})",
        R"({"rope_scaling":{"type":"default"}})", R"({"layer_types":null})",
        R"({"num_hidden_layers":1,"layer_types":["full_attention"],"attention_bias":true})"}) {
    EXPECT_EQ(refusal(json), "accepted") << json;
  }
  for (const auto& [json, part] :
       {std::pair(R"({"model_type":"qwen2"})", "'model_type' must be \"qwen3\""),
        {R"({"use_sliding_window":true,"sliding_window":0})", "'sliding_window' must be an integer from 1"},
        {R"({"layer_types":["full_attention"]})", "'layer_types' must be a list of num_hidden_layers (32)"},
        {R"({"num_hidden_layers":1,"use_sliding_window":true,"layer_types":["chunked_attention"]})",
         "only blocks of full_attention and of sliding_attention can run"},
        {R"({"num_hidden_layers":1,"layer_types":["sliding_attention"]})",
         "blocks of sliding_attention need a sliding_window that is used"},
        {R"({"rope_scaling":{"rope_type":"yarn","factor":0}})",
         "rope_scaling] 'factor' must be a number from"},
        {R"({"rope_scaling":{"type":"linear"}})", "'factor' must be a number, but it is missing"},
        {R"({"rope_parameters":{"rope_type":"axial"}})",
         "'rope_parameters' is {\"rope_type\":\"axial\"}: angles can have the scalings linear, dynamic"},
        {R"({"rope_parameters":{"rope_type":"longrope","short_factor":[1]}})",
         "rope_parameters] 'short_factor' must be 64 numbers, half of head_dim, got [1]"},
        {R"({"rope_parameters":{"full_attention":{"rope_theta":5.0}}})", "'rope_parameters'"},
        {R"({"hidden_act":"prelu"})", "'hidden_act' must be one of gelu, gelu_10, "},
        {R"({"num_key_value_heads":5})",
         "'num_key_value_heads' must be a divisor of num_attention_heads (32)"},
        {R"({"head_dim":7})", "'head_dim' must be even"},
        {R"({"head_dim":null})", "'head_dim'"},
        {R"({"num_hidden_layers":0})", "'num_hidden_layers'"}}) {
    EXPECT_NE(refusal(json).find(part), std::string::npos) << refusal(json);
  }
}

// transformers 4 has theta beside the scaling, transformers 5 in one object, which counts.
TEST(Qwen3Config, ReadsTheAngleWhereEitherVersionWritesIt) {
  const auto theta = [](const Json& json) { return read_qwen3(json).rope.theta; };
  EXPECT_EQ(theta(Json::object()), 10000);
  EXPECT_EQ(theta({{"rope_theta", 1e6}, {"rope_scaling", nullptr}}), 1e6);
  EXPECT_EQ(theta({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e6}}}}), 5e6);
  EXPECT_EQ(theta({{"rope_theta", 1e6}, {"rope_parameters", {{"rope_theta", 5e6}}}}), 5e6);
  EXPECT_EQ(theta({{"rope_theta", 1e6}, {"rope_parameters", {{"rope_type", "default"}}}}), 1e6);
  EXPECT_EQ(theta({{"rope_scaling", {{"rope_theta", 3.0}}}, {"rope_parameters", {{"rope_theta", 5e6}}}}), 3);
}

// The blocks behind max_window_layers, or those that layer_types names.
TEST(Qwen3Config, KnowsWhichBlocksHaveAWindow) {
  const auto windows = [](Json json) {
    json["num_hidden_layers"] = 3;
    return read_qwen3(json).windows;
  };
  using Windows = std::vector<std::optional<int64_t>>;
  const Windows none(3);
  EXPECT_EQ(windows({{"sliding_window", 5}, {"max_window_layers", 1}}), none);
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"sliding_window", 5}}), none);
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}}),
            none);
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 2}}),
            (Windows{{}, {}, 5}));
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"max_window_layers", -1}}), Windows(3, 4096));
  const std::vector<std::string> types = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"sliding_window", 5}, {"layer_types", types}}),
            (Windows{5, {}, 5}));
}

TEST(Qwen3Config, ScalesAnglesAsTransformers) {
  const Json all = read_json(golden_folder("qwen3-options") / "golden/options.json").at("ropes");
  EXPECT_EQ(all.size(), 21U);
  for (const Json& each : all) {
    Json config = each.at("config");
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      config[key] = each.at("config").at("rope_parameters");
      const Qwen3Rope rope = read_qwen3(config).rope;
      const auto expected = each.at("frequencies").get<std::vector<float>>();
      const at::Tensor frequencies = rope.frequencies_of(each.at("tokens").get<int64_t>());
      ASSERT_EQ(frequencies.numel(), std::ssize(expected)) << each;
      for (size_t i = 0; i < expected.size(); ++i) {
        const float own = frequencies[static_cast<int64_t>(i)].item<float>();
        EXPECT_NEAR(own, expected[i], 1e-6F * std::abs(expected[i])) << each << ", pair " << i;
      }
      EXPECT_DOUBLE_EQ(rope.factor, each.at("factor").get<double>()) << each;
    }
  }
}

// The file may say beside the rotation for how many positions the model was trained.
TEST(Qwen3Config, TakesThePositionsOfTrainingFromTheFile) {
  const auto frequency = [](const Json& more) {
    Json config = {{"head_dim", 26}, {"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}}}};
    config.update(more);
    return read_qwen3(config).rope.frequencies[6].item<float>();
  };
  const float expected = frequency({{"max_position_embeddings", 64}});
  EXPECT_NE(frequency({{"max_position_embeddings", 2048}}), expected);
  EXPECT_EQ(frequency({{"max_position_embeddings", 2048}, {"original_max_position_embeddings", 64}}),
            expected);
}

TEST(Qwen3Config, KnowsActivationsOfTransformers) {
  const Json options = read_json(golden_folder("qwen3-options") / "golden/options.json");
  const at::Tensor x = at::tensor(options.at("x").get<std::vector<float>>());
  EXPECT_EQ(options.at("activations").size(), 22U);
  for (const auto& [name, values] : options.at("activations").items()) {
    const Qwen3Activation activation = read_qwen3({{"hidden_act", name}}).activation;
    at::Tensor y = ops::activate(x, activation.in_product);
    if (activation.behind != nullptr) y = activation.behind(y);
    EXPECT_TRUE(at::allclose(y, at::tensor(values.get<std::vector<float>>()), 1e-5, 1e-6)) << name << y;
  }
}

// So that no key of a published file is warned of.
TEST(Qwen3Config, AsksForTheKeysOfFiles) {
  for (const char* name : {"qwen3-grouped", "qwen3-published", "qwen3-options"}) {
    Json values = read_json(golden_folder(name) / "config.json");
    values["sliding_window"] = 4096;
    const JsonConfig json(values, "config.json");
    const Qwen3Config config(json);
    const std::vector<std::string> unread = json.unread();
    for (const char* key :
         {"sliding_window", "max_window_layers", "max_position_embeddings", "rope_theta", "rope_parameters",
          "rope_scaling", "layer_types", "hidden_act", "attention_bias"}) {
      EXPECT_EQ(std::count(unread.begin(), unread.end(), key), 0) << key;
    }
  }
}

TEST(Qwen3Config, NullMeansAsManyKeysAsQueries) {
  EXPECT_EQ(read_qwen3({{"num_attention_heads", 6}, {"num_key_value_heads", nullptr}}).num_key_value_heads,
            6);
  EXPECT_EQ(read_qwen3({{"num_attention_heads", 64}}).num_key_value_heads, 32);
}

}  // namespace
}  // namespace tessera::models
