#include "models/t5_prompt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/log.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace tessera::models {
namespace {

T5Config config_of(const std::string& name) {
  return T5Config(JsonConfig::read(golden_folder(name) / "config.json"));
}

T5Encoder load(const std::string& name, at::ScalarType dtype) {
  weights::Checkpoint checkpoint(golden_folder(name), weights::Library::kTransformers);
  return {weights::Scope(checkpoint, {.dtype = dtype}), config_of(name)};
}

at::Tensor encode(const T5Encoder& encoder, const at::Tensor& ids) {
  const int64_t* first = ids.const_data_ptr<int64_t>();
  return encoder({{first, first + ids.numel()}}).at(0);
}

constexpr int kLengths[] = {1, 7, 150};

class T5Golden : public ::testing::TestWithParam<const char*> {
 protected:
  std::map<std::string, at::Tensor> golden_ =
      read_golden(std::string(GetParam()) + "/golden/golden.safetensors");
};

// The golden outputs come from padded batches with a mask.
TEST_P(T5Golden, EqualsTransformersInFp32) {
  const T5Encoder encoder = load(GetParam(), at::kFloat);
  for (const int length : kLengths) {
    const at::Tensor out = encode(encoder, golden_.at(fmt::format("ids.{}", length)));
    EXPECT_LE(relative_error(out, golden_.at(fmt::format("output.{}", length))), kComponentTolerance)
        << length;
  }
}

TEST_P(T5Golden, IsAsNearTheTruthInHalfPrecisionAsTransformers) {
  for (const auto& [dtype, suffix] : {std::pair(at::kBFloat16, ".bf16"), {at::kHalf, ".fp16"}}) {
    const T5Encoder encoder = load(GetParam(), dtype);
    double own = 0, theirs = 0;  // sums over all lengths, because the error of one token is noisy
    for (const int length : kLengths) {
      const std::string key = fmt::format("output.{}", length);
      const at::Tensor out = encode(encoder, golden_.at(fmt::format("ids.{}", length)));
      EXPECT_EQ(out.scalar_type(), dtype);
      own += (out.to(at::kFloat) - golden_.at(key)).square().sum().item<double>();
      theirs += (golden_.at(key + suffix) - golden_.at(key)).square().sum().item<double>();
    }
    EXPECT_LE(std::sqrt(own), 1.1 * std::sqrt(theirs)) << suffix;
  }
}

// The table of the encoder counts beside one that it would share with a decoder.
TEST_P(T5Golden, TakesTheEncodersOwnTable) {
  std::map<std::string, at::Tensor> tensors = read_golden(std::string(GetParam()) + "/model.safetensors");
  const TemporaryFolder folder;
  const auto encoded = [&] {
    weights::write_safetensors(folder.path() / "model.safetensors", tensors);
    weights::Checkpoint checkpoint(folder.path(), weights::Library::kTransformers);
    return encode({weights::Scope(checkpoint, {.dtype = at::kFloat}), config_of(GetParam())},
                  golden_.at("ids.7"));
  };
  const at::Tensor table = tensors.at("shared.weight");
  tensors["encoder.embed_tokens.weight"] = table.flip(0);
  const at::Tensor both = encoded();
  tensors.erase("shared.weight");
  EXPECT_TRUE(at::equal(both, encoded()));
}

// Many ranks give the result of one, even if there are more ranks than heads.
TEST_P(T5Golden, SplitsItsLayersOverRanks) {
  const at::Tensor ids = golden_.at("ids.7");
  const at::Tensor whole = encode(load(GetParam(), at::kFloat), ids);
  for (const int64_t size : {2, 3, 8}) {
    comm::run_ranks_as_threads(size, [&](comm::World world) {
      weights::Placement placement;
      std::vector<int64_t> all(static_cast<size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      placement.groups.inner = world.group(all, "tp");
      weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kTransformers);
      const T5Encoder encoder(weights::Scope(checkpoint, placement), config_of(GetParam()));
      EXPECT_LE(relative_error(encode(encoder, ids), whole), kComponentTolerance) << size;
    });
  }
}

// Blocks that are read only when used give the same bits, for every prompt.
TEST_P(T5Golden, ReadsItsBlocksAtUse) {
  weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kTransformers);
  const weights::Scope scope(checkpoint, {});
  const T5Encoder stays(scope, config_of(GetParam()));
  const T5Encoder reads = T5Encoder::read_at_use(scope, config_of(GetParam()));
  const std::vector<std::vector<int64_t>> ids = {{3, 1}, {5, 9, 2, 1}, {1}};
  const std::vector<at::Tensor> expected = stays(ids), outputs = reads(ids);
  ASSERT_EQ(outputs.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_TRUE(at::equal(outputs[i], expected[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Models, T5Golden, ::testing::Values("t5-gated", "t5-relu"));

TEST(T5Encoder, ReadsTheEmbeddingUnderEitherName) {
  const std::string name = "t5-relu";
  const auto golden = read_golden(name + "/golden/golden.safetensors");
  for (const bool both : {false, true}) {
    auto tensors = read_golden(name + "/model.safetensors");
    tensors["encoder.embed_tokens.weight"] = tensors.at("shared.weight").clone();
    if (!both) tensors.erase("shared.weight");
    const CheckpointFixture fixture(tensors);
    const T5Encoder encoder(fixture.scope(), config_of(name));
    EXPECT_LE(relative_error(encode(encoder, golden.at("ids.7")), golden.at("output.7")),
              kComponentTolerance);
  }
  auto tensors = read_golden(name + "/model.safetensors");
  tensors.erase("shared.weight");
  const CheckpointFixture fixture(tensors);
  EXPECT_THROW(T5Encoder(fixture.scope(), config_of(name)), Error);
}

TEST(T5Encoder, StaysInRangeInFp16) {
  const std::string name = "t5-gated";
  auto tensors = read_golden(name + "/model.safetensors");
  for (auto& [key, tensor] : tensors) {
    if (key.ends_with(".wo.weight")) tensor.mul_(3e4);
  }
  const CheckpointFixture fixture(tensors);
  const at::Tensor ids = read_golden(name + "/golden/golden.safetensors").at("ids.7");
  const at::Tensor truth = encode(T5Encoder(fixture.scope(), config_of(name)), ids);
  const at::Tensor out = encode(T5Encoder(fixture.scope(at::kHalf), config_of(name)), ids);
  EXPECT_LE(relative_error(out, truth), 1e-2);
}

TEST(T5Encoder, RefusesTokensThatItDoesNotKnow) {
  const T5Encoder encoder = load("t5-relu", at::kFloat);
  try {
    encoder({{0, 61}});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("id 61"), std::string::npos);
  }
}

TEST(T5Config, RefusesWhatItCannotRun) {
  const auto refusal = [](const std::string& json) {
    try {
      const T5Config config(JsonConfig(parse_json(json, "config.json"), "config.json"));
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3);
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal("{}"), "accepted");
  EXPECT_EQ(refusal(R"({"model_type":"t5","feed_forward_proj":"gated-gelu"})"), "accepted");
  for (const auto& [json, part] :
       {std::pair(R"({"model_type":"umt5"})", "'model_type' must be \"t5\""),
        {R"({"is_decoder":true})", "'is_decoder' is true: a text encoder of this kind cannot run"},
        {R"({"feed_forward_proj":"gated-tanh"})", "'feed_forward_proj'"},
        {R"({"feed_forward_proj":"other-relu"})", "'feed_forward_proj'"},
        {R"({"dense_act_fn":"tanh"})", "'dense_act_fn'"},
        {R"({"dense_act_fn":null})", "'dense_act_fn'"},
        {R"({"num_layers":0})", "'num_layers'"},
        {R"({"d_kv":"x"})", "'d_kv'"},
        {R"({"relative_attention_num_buckets":3})", "'relative_attention_num_buckets'"},
        {R"({"relative_attention_max_distance":8})", "'relative_attention_num_buckets'"}}) {
    EXPECT_NE(refusal(json).find(part), std::string::npos) << refusal(json);
  }
}

// transformers makes two attributes of feed_forward_proj, then sets those that the file has.
TEST(T5Config, ActivationAndGateOfTheFileCount) {
  const auto read = [](const Json& json) { return T5Config(JsonConfig(json, "config.json")); };
  const auto activation = [&](const Json& json) { return read(json).activation; };
  using enum ops::Activation;
  EXPECT_EQ(activation(Json::object()), kRelu);
  EXPECT_EQ(activation({{"feed_forward_proj", "gated-gelu"}}), kGeluTanh);
  EXPECT_EQ(activation({{"feed_forward_proj", "gelu"}}), kGelu);
  EXPECT_EQ(activation({{"feed_forward_proj", "gated-silu"}}), kSilu);
  EXPECT_EQ(activation({{"feed_forward_proj", "gated-gelu"}, {"dense_act_fn", "relu"}}), kRelu);
  EXPECT_TRUE(read({{"feed_forward_proj", "gated-gelu"}}).gated);
  EXPECT_FALSE(read({{"feed_forward_proj", "gated-gelu"}, {"is_gated_act", false}}).gated);
}

// Assembles a checkpoint's text encoder and tokenizer from the goldens of both.
class T5TextEncoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory_symlink(golden_folder("t5-gated"), folder_ / "text_encoder");
    std::filesystem::create_directory_symlink(golden_folder("t5_tokenizer"), folder_ / "tokenizer");
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(T5TextEncoderTest, TurnsPromptsIntoWhatDiffusersConditionsOn) {
  const auto golden = read_golden("t5-gated/golden/golden.safetensors");
  std::vector<std::string> warnings;
  const LogSink before =
      set_log_sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  LoadStatistics statistics, at_use;
  const auto encoder = load_t5_of_captions(folder_, {}, statistics);
  const auto reader = load_t5_of_captions(folder_, {.placement = {}, .blocks = {}, .stays = false}, at_use);
  weights::Checkpoint checkpoint(folder_ / "text_encoder", weights::Library::kTransformers);
  uint64_t bytes = 0;  // all but the embeddings, of which only some rows are read
  for (const std::string& key : checkpoint.keys()) {
    const weights::TensorEntry& entry = checkpoint.entry(key);
    if (!key.starts_with("shared.") && !key.ends_with("embed_tokens.weight"))
      bytes += entry.end - entry.begin;
  }
  EXPECT_EQ(statistics.bytes_read, bytes);
  EXPECT_EQ(statistics.bytes_at_use, 0U);
  EXPECT_EQ(at_use.bytes_read, bytes);
  EXPECT_EQ(at_use.bytes_held, statistics.bytes_held);
  EXPECT_GT(at_use.bytes_at_use, bytes / 2);
  const auto tokens_of = [](TextEncoder& model, const std::string& prompt, int64_t length) {
    return model.encode({Prompt{.text = prompt}}, length).at(0).at(kTokens);
  };
  const std::vector<std::string> prompts = {"", "A Red circle above a BLUE square",
                                            "  Красный круг \uff41 </s> <extra_id_3>\n"};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const at::Tensor& expected = golden.at(fmt::format("prompt.{}", i));
    const at::Tensor tokens = tokens_of(*encoder, prompts[i], 20);
    EXPECT_TRUE(at::equal(tokens, tokens_of(*reader, prompts[i], 20)));
    ASSERT_EQ(tokens.sizes(), expected.sizes()) << prompts[i];
    EXPECT_LE(relative_error(tokens, expected), kComponentTolerance) << prompts[i];
  }
  const Prompt marked{.text = "<b>A Red</b> circle above a BLUE square", .clean_caption = true};
  EXPECT_TRUE(
      at::equal(encoder->encode({marked}, 20).at(0).at(kTokens), tokens_of(*encoder, prompts[1], 20)));
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(tokens_of(*encoder, prompts[1], 5).size(0), 5);
  EXPECT_EQ(warnings.size(), 1U);
  EXPECT_THROW(tokens_of(*encoder, "a\xff", 20), Error);
  set_log_sink(before);
}

// From shapes alone, as models are checked and traced, whatever the activation.
TEST(T5, EncodesOnMetaWithEachActivation) {
  for (const char* activation : {"relu", "gated-gelu", "gelu", "silu"}) {
    const JsonConfig json(Json{{"vocab_size", 20},
                               {"d_model", 8},
                               {"d_kv", 4},
                               {"d_ff", 16},
                               {"num_heads", 2},
                               {"num_layers", 1},
                               {"feed_forward_proj", activation}},
                          "config");
    weights::ShapeOnlySource shapes;
    const T5Encoder encoder(weights::Scope(shapes, {.device = at::kMeta}), T5Config(json));
    EXPECT_EQ(encoder({{1, 2, 3}}).front().sizes(), (at::IntArrayRef{3, 8})) << activation;
  }
}

}  // namespace
}  // namespace tessera::models
