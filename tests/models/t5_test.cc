#include "models/t5.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "core/error.h"
#include "core/log.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"

namespace tessera::models {
namespace {

T5Config config_of(const std::string& name) {
  return T5Config(JsonConfig::read(golden_folder(name) / "config.json"));
}

T5Encoder load(const std::string& name, at::ScalarType dtype) {
  weights::Checkpoint checkpoint(golden_folder(name));
  return {weights::Scope(checkpoint, dtype), config_of(name), comm::Group{}};
}

at::Tensor encode(const T5Encoder& encoder, const at::Tensor& ids) {
  return encoder({ids.data_ptr<int64_t>(), static_cast<size_t>(ids.numel())});
}

constexpr int kLengths[] = {1, 7, 150};

class T5Golden : public ::testing::TestWithParam<const char*> {
 protected:
  std::map<std::string, at::Tensor> golden_ =
      read_golden(std::string(GetParam()) + "/golden/golden.safetensors");
};

// The golden outputs are of padded batches with a mask.
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
    double own = 0, theirs = 0;  // over all lengths: the error of one token is noise
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

// What the ranks of a group compute adds up to what one rank computes, also where some have no head.
TEST_P(T5Golden, SplitsItsLayers) {
  const T5Config config = config_of(GetParam());
  weights::Checkpoint checkpoint(golden_folder(GetParam()));
  const weights::Scope block = weights::Scope(checkpoint, at::kFloat) / "encoder" / "block" / 0 / "layer";
  const at::Tensor x = at::randn({9, config.d_model});
  const at::Tensor bias = at::randn({1, config.num_heads, 9, 9});
  const at::Tensor attended = T5Attention(block / 0 / "SelfAttention", config, {})(x, bias);
  const at::Tensor fed = T5FeedForward(block / 1 / "DenseReluDense", config, {})(x);
  for (const int64_t size : {2, 4, 8}) {
    at::Tensor attended_sum = at::zeros_like(x), fed_sum = at::zeros_like(x);
    for (int64_t rank = 0; rank < size; ++rank) {
      const comm::Group group{.rank = rank, .size = size};
      const Range own = group.part(config.num_heads);
      attended_sum +=
          T5Attention(block / 0 / "SelfAttention", config, group)(x, bias.narrow(1, own.begin, own.length));
      fed_sum += T5FeedForward(block / 1 / "DenseReluDense", config, group)(x);
    }
    EXPECT_LE(relative_error(attended_sum, attended), kComponentTolerance) << size;
    EXPECT_LE(relative_error(fed_sum, fed), kComponentTolerance) << size;
  }
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
    const T5Encoder encoder(fixture.scope(), config_of(name), {});
    EXPECT_LE(relative_error(encode(encoder, golden.at("ids.7")), golden.at("output.7")),
              kComponentTolerance);
  }
  auto tensors = read_golden(name + "/model.safetensors");
  tensors.erase("shared.weight");
  const CheckpointFixture fixture(tensors);
  EXPECT_THROW(T5Encoder(fixture.scope(), config_of(name), {}), Error);
}

TEST(T5Encoder, StaysInRangeInFp16) {
  const std::string name = "t5-gated";
  auto tensors = read_golden(name + "/model.safetensors");
  for (auto& [key, tensor] : tensors) {
    if (key.ends_with(".wo.weight")) tensor.mul_(3e4);
  }
  const CheckpointFixture fixture(tensors);
  const at::Tensor ids = read_golden(name + "/golden/golden.safetensors").at("ids.7");
  const at::Tensor truth = encode(T5Encoder(fixture.scope(), config_of(name), {}), ids);
  const at::Tensor out = encode(T5Encoder(fixture.scope(at::kHalf), config_of(name), {}), ids);
  EXPECT_LE(relative_error(out, truth), 1e-2);
}

TEST(T5Encoder, RefusesTokensThatItDoesNotKnow) {
  const T5Encoder encoder = load("t5-relu", at::kFloat);
  try {
    encoder({0, 61});
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
        {R"({"feed_forward_proj":"gated-swish"})", "'feed_forward_proj'"},
        {R"({"num_layers":0})", "'num_layers'"},
        {R"({"d_kv":"x"})", "'d_kv'"},
        {R"({"relative_attention_num_buckets":3})", "'relative_attention_num_buckets'"},
        {R"({"relative_attention_max_distance":8})", "'relative_attention_num_buckets'"}}) {
    EXPECT_NE(refusal(json).find(part), std::string::npos) << refusal(json);
  }
}

// A checkpoint's text encoder and tokenizer, put together from the goldens of both.
class T5TextEncoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("tessera-t5-{}", ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::filesystem::create_directory_symlink(golden_folder("t5-gated"), folder_ / "text_encoder");
    std::filesystem::create_directory_symlink(golden_folder("t5_tokenizer"), folder_ / "tokenizer");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(T5TextEncoderTest, TurnsPromptsIntoWhatDiffusersConditionsOn) {
  const auto golden = read_golden("t5-gated/golden/golden.safetensors");
  std::vector<std::string> warnings;
  const LogSink before =
      set_log_sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  LoadStatistics statistics;
  const auto encoder = load_t5_text_encoder(folder_, LoadOptions{}, statistics);
  weights::Checkpoint checkpoint(folder_ / "text_encoder");
  uint64_t bytes = 0;  // of all but the embeddings, of which only rows are read
  for (const std::string& key : checkpoint.keys()) {
    const weights::TensorEntry& entry = checkpoint.entry(key);
    if (!key.starts_with("shared.") && !key.ends_with("embed_tokens.weight"))
      bytes += entry.end - entry.begin;
  }
  EXPECT_EQ(statistics.bytes_read, bytes);
  const std::vector<std::string> prompts = {"", "A Red circle above a BLUE square",
                                            "  Красный круг \uff41 </s> <extra_id_3>\n"};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const at::Tensor& expected = golden.at(fmt::format("prompt.{}", i));
    const at::Tensor tokens = encoder->encode(prompts[i], 20).tokens;
    ASSERT_EQ(tokens.sizes(), expected.sizes()) << prompts[i];
    EXPECT_LE(relative_error(tokens, expected), kComponentTolerance) << prompts[i];
  }
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(encoder->encode(prompts[1], 5).tokens.size(0), 5);
  EXPECT_EQ(warnings.size(), 1U);
  EXPECT_THROW(encoder->encode("a\xff", 20), Error);
  set_log_sink(before);
}

}  // namespace
}  // namespace tessera::models
