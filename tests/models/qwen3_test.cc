#include "models/qwen3_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "core/error.h"
#include "core/log.h"
#include "ops/operation.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace tessera::models {
namespace {

using Tokens = Qwen3Encoder::Tokens;

bool is_mistral(const std::string& name) {
  return name == "mistral3";
}

Qwen3Config qwen3_config(const std::string& name) {
  return Qwen3Config(JsonConfig::read(golden_folder(name) / "config.json"),
                     is_mistral(name) ? Trunk::kMistral3 : Trunk::kQwen3);
}

std::vector<int64_t> to_vector(const at::Tensor& ids) {
  const int64_t* first = ids.const_data_ptr<int64_t>();
  return {first, first + ids.numel()};
}

// What the golden has of these states, side by side.
at::Tensor side_by_side(const at::Tensor& all, const std::vector<int64_t>& states) {
  std::vector<at::Tensor> parts;
  for (const int64_t state : states) parts.push_back(all.select(0, state));
  return at::concat(parts, 1);
}

class Qwen3Golden : public ::testing::TestWithParam<const char*> {
 protected:
  // Every state, those of padding too.
  std::vector<int64_t> all_states() const {
    std::vector<int64_t> states(static_cast<size_t>(config_.num_hidden_layers) + 1);
    std::iota(states.begin(), states.end(), 0);
    return states;
  }
  Tokens tokens(const std::string& key) const {
    if (key != "padded") return {to_vector(golden_.at("ids." + key)), {}};
    return {to_vector(golden_.at("ids." + key)), own_};
  }
  at::Tensor encode(const weights::Placement& placement, const std::vector<int64_t>& states,
                    const std::string& key) const {
    weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kTransformers);
    const Qwen3Encoder encoder(weights::Scope(checkpoint, placement), config_, states);
    return encoder({tokens(key)}).at(0);
  }

  const Qwen3Config config_ = qwen3_config(GetParam());
  // Of 20 tokens, the others padding, on the side of diffusers' pipelines.
  const Range own_ = {.begin = is_mistral(GetParam()) ? 13 : 0, .length = 7};
  const std::map<std::string, at::Tensor> golden_ =
      read_golden(std::string(GetParam()) + "/golden/golden.safetensors");
};

constexpr const char* kQwen3Cases[] = {"1", "7", "40", "padded"};

TEST_P(Qwen3Golden, EqualsTransformersInFp32) {
  for (const char* key : kQwen3Cases) {
    const at::Tensor out = encode({}, all_states(), key);
    const at::Tensor expected = golden_.at(fmt::format("states.{}", key));
    for (const int64_t state : all_states()) {
      const at::Tensor own = out.narrow(1, state * config_.hidden_size, config_.hidden_size);
      EXPECT_LE(relative_error(own, expected[state]), kComponentTolerance) << key << ", state " << state;
    }
  }
}

TEST_P(Qwen3Golden, IsAsNearTheTruthInHalfPrecisionAsTransformers) {
  for (const auto& [dtype, suffix] : {std::pair(at::kBFloat16, ".bf16"), {at::kHalf, ".fp16"}}) {
    double own = 0, theirs = 0;  // sums over all lengths, because the error of one token is noisy
    for (const char* key : kQwen3Cases) {
      const at::Tensor out = encode({.dtype = dtype}, all_states(), key);
      EXPECT_EQ(out.scalar_type(), dtype);
      const auto expected = [&](const std::string& end) {
        return side_by_side(golden_.at(fmt::format("states.{}{}", key, end)), all_states());
      };
      own += (out.to(at::kFloat) - expected("")).square().sum().item<double>();
      theirs += (expected(suffix) - expected("")).square().sum().item<double>();
    }
    RecordProperty(std::string("ratio") + suffix, fmt::format("{:.3f}", std::sqrt(own / theirs)));
    EXPECT_LE(std::sqrt(own), 1.1 * std::sqrt(theirs)) << suffix;
  }
}

// In the order in which they are asked for, as often as they are, counted from the end where below 0.
TEST_P(Qwen3Golden, ReadsTheStatesThatAFamilyNames) {
  const at::Tensor all = golden_.at("states.7");
  const int64_t last = config_.num_hidden_layers;
  for (const auto& [asked, expected] :
       {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{-2}, {last - 1}},
        {{0}, {0}},
        {{-1}, {last}},
        {{2, 1, 2}, {2, 1, 2}},
        {{1, -2, last}, {1, last - 1, last}}}) {
    EXPECT_LE(relative_error(encode({}, asked, "7"), side_by_side(all, expected)), kComponentTolerance);
  }
}

// Blocks behind the last state need not be there.
TEST_P(Qwen3Golden, ReadsNoBlockBehindTheLastState) {
  std::map<std::string, at::Tensor> tensors = read_golden(std::string(GetParam()) + "/model.safetensors");
  const bool is_bare = tensors.contains("norm.weight");
  const std::string front = is_mistral(GetParam()) ? "language_model.model." : is_bare ? "" : "model.";
  const std::string block = fmt::format("{}layers.{}.", front, config_.num_hidden_layers - 1);
  std::vector<std::string> dropped;
  for (const auto& [key, tensor] : tensors) {
    if (key.starts_with(block) || key == front + "norm.weight") dropped.push_back(key);
  }
  EXPECT_EQ(dropped.size(), is_mistral(GetParam()) ? 10U : config_.attention_bias ? 16U : 12U);
  for (const std::string& key : dropped) tensors.erase(key);
  const CheckpointFixture fixture(tensors);
  const Qwen3Encoder encoder(fixture.scope(), config_, {-2});
  EXPECT_LE(
      relative_error(encoder({tokens("7")}).at(0), golden_.at("states.7")[config_.num_hidden_layers - 1]),
      kComponentTolerance);
  const std::vector<std::string> unused = encoder.unused_prefixes();
  EXPECT_EQ(unused.front(), "lm_head.");
  EXPECT_EQ(std::vector<std::string>(unused.end() - 2, unused.end()),
            (std::vector<std::string>{block, front + "norm."}));
  EXPECT_THROW(Qwen3Encoder(fixture.scope(), config_, {-1}), Error);
}

TEST_P(Qwen3Golden, ReadsItsWeightsUnderEitherName) {
  std::map<std::string, at::Tensor> renamed;
  const std::string of_mistral = "language_model.model.";
  for (const auto& [key, tensor] : read_golden(std::string(GetParam()) + "/model.safetensors")) {
    if (key.starts_with(of_mistral)) {
      renamed["model.language_model." + key.substr(of_mistral.size())] = tensor;
    } else {
      renamed[key.starts_with("model.") ? key.substr(6) : "model." + key] = tensor;
    }
  }
  const CheckpointFixture fixture(renamed);
  const Qwen3Encoder encoder(fixture.scope(), config_, {1});
  EXPECT_TRUE(at::equal(encoder({tokens("7")}).at(0), encode({}, {1}, "7")));
}

// Padding does not reach the tokens, and two prompts do not reach each other.
TEST_P(Qwen3Golden, TokensDoNotDependOnPaddingOrOtherPrompts) {
  weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kTransformers);
  const Qwen3Encoder encoder(weights::Scope(checkpoint, {}), config_, {-2, 1});
  const std::vector<at::Tensor> both = encoder({tokens("padded"), tokens("7")});
  EXPECT_LE(relative_error(both[0].narrow(0, own_.begin, own_.length), both[1]), kComponentTolerance);
  EXPECT_TRUE(at::equal(both[1], encoder({tokens("7")}).at(0)));
}

// Queries stay with the keys that they share, whichever way weights are divided; where there are more ranks
// than keys, each has all of them.
TEST_P(Qwen3Golden, SplitsItsLayersOverRanks) {
  for (const char* key : {"7", "padded"}) {
    const at::Tensor whole = encode({}, all_states(), key);
    for (const auto& [size, is_outer] :
         {std::pair<int64_t, bool>(2, false), {3, false}, {8, false}, {2, true}, {3, true}}) {
      comm::run_ranks_as_threads(size, [&](comm::World world) {
        weights::Placement placement;
        std::vector<int64_t> all(static_cast<size_t>(size));
        std::iota(all.begin(), all.end(), 0);
        (is_outer ? placement.groups.outer : placement.groups.inner) = world.group(all, "tp");
        EXPECT_LE(relative_error(encode(placement, all_states(), key), whole), kComponentTolerance) << size;
      });
    }
  }
}

// Blocks that are read only when used give the same bits, for every prompt.
TEST_P(Qwen3Golden, ReadsItsBlocksAtUse) {
  weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kTransformers);
  const weights::Scope scope(checkpoint, {});
  const std::vector<int64_t> states = {1, -2};
  const Qwen3Encoder stays(scope, config_, states);
  const Qwen3Encoder reads = Qwen3Encoder::read_at_use(scope, config_, states);
  const std::vector<Tokens> prompts = {tokens("7"), tokens("padded"), tokens("1")};
  const std::vector<at::Tensor> expected = stays(prompts), outputs = reads(prompts);
  ASSERT_EQ(outputs.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_TRUE(at::equal(outputs[i], expected[i])) << i;
}

// From shapes alone it records the operations of a real run.
TEST_P(Qwen3Golden, RecordsOnMetaWhatItDoes) {
  const auto record = [&](weights::Source& source, at::Device device) {
    std::vector<std::string> operations;
    const ops::ObserveOperations observe([&](const ops::Operation& operation) {
      // Files may have names without the first part.
      std::string role(operation.role);
      for (const std::string_view part : {"language_model.", "model."})
        if (role.starts_with(part)) role.erase(0, part.size());
      operations.push_back(
          fmt::format("{} {} [{}] {} {} {}", operation.name, role, fmt::join(operation.output.shape, ", "),
                      c10::toString(operation.output.dtype), operation.flops, operation.bytes));
    });
    const Qwen3Encoder encoder(weights::Scope(source, {.dtype = at::kBFloat16, .device = device}), config_,
                               {1, -2});
    const at::Tensor out = encoder({tokens("padded"), tokens("40")}).at(0);
    EXPECT_EQ(out.sizes(), (at::IntArrayRef{20, 2 * config_.hidden_size}));
    return operations;
  };
  weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kTransformers);
  weights::ShapeOnlySource shapes;
  const std::vector<std::string> real = record(checkpoint, at::kCPU);
  EXPECT_GE(real.size(), 20U);
  EXPECT_EQ(record(shapes, at::kMeta), real);
}

TEST_P(Qwen3Golden, RefusesTokensAndStatesThatItDoesNotHave) {
  weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kTransformers);
  const weights::Scope scope(checkpoint, {});
  const auto refusal = [](auto&& run, int exit_code) {
    try {
      run();
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), exit_code);
      return std::string(error.what());
    }
  };
  const std::string id = refusal([&] { Qwen3Encoder(scope, config_, {1})({{{0, 700}}}); }, 2);
  EXPECT_NE(id.find("id 700"), std::string::npos) << id;
  for (const int64_t state : {27, -28}) {
    const std::string states = refusal([&] { Qwen3Encoder(scope, config_, {1, state}); }, 3);
    EXPECT_NE(states.find(fmt::format("reads hidden state {}, which is not there", state)), std::string::npos)
        << states;
    EXPECT_NE(states.find("config.json"), std::string::npos) << states;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Qwen3Golden,
                         ::testing::Values("qwen3-grouped", "qwen3-published", "mistral3", "qwen3-options"));

// Assembles a checkpoint's text encoder and tokenizer from the goldens of both.
class Qwen3TextEncoderTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMost = 64;  // tokens
  const std::vector<std::string> prompts_ = {
      "", "A Red circle above a BLUE square",
      " \u041a\u0440\u0430\u0441\u043d\u044b\u0439 <|im_end|> e\u0301 42\n\n"};

  Qwen3TextEncoder load(const Qwen3PromptOptions& own, const LoadOptions& options,
                        LoadStatistics& statistics) {
    return {golden_folder("qwen3_tokenizer"), golden_folder("qwen3-grouped"), own, options, statistics};
  }
  // The prompts as diffusers' pipelines encode them.
  void expect_prompts(const char* pipeline, const Qwen3PromptOptions& own) {
    const auto golden = read_golden("qwen3-grouped/golden/golden.safetensors");
    for (const bool stays : {true, false}) {
      LoadStatistics statistics;
      Qwen3TextEncoder encoder = load(own, {.placement = {}, .blocks = {}, .stays = stays}, statistics);
      std::vector<Prompt> prompts;
      for (const std::string& text : prompts_) prompts.push_back({.text = text});
      const std::vector<Conditioning> made = encoder.encode(prompts, kMost);
      for (size_t i = 0; i < prompts.size(); ++i) {
        const at::Tensor& expected = golden.at(fmt::format("{}.{}", pipeline, i));
        ASSERT_EQ(made[i].at(kTokens).sizes(), expected.sizes()) << i;
        EXPECT_LE(relative_error(made[i].at(kTokens), expected), kComponentTolerance) << pipeline << ' ' << i;
      }
    }
  }
};

TEST_F(Qwen3TextEncoderTest, GivesWhatZImageConditionsOn) {
  expect_prompts("z_image", {.states = {-2}});
}

TEST_F(Qwen3TextEncoderTest, GivesWhatFlux2KleinConditionsOn) {
  expect_prompts("klein", {.states = {1, 3, 4}, .enable_thinking = false, .pads = true});
}

TEST_F(Qwen3TextEncoderTest, CountsTheBlocksThatItNeedsAndWarnsOfNoOther) {
  std::vector<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  LoadStatistics stays, at_use;
  load({.states = {2}}, {}, stays);
  load({.states = {2}}, {.placement = {}, .blocks = {}, .stays = false}, at_use);
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  weights::Checkpoint checkpoint(golden_folder("qwen3-grouped"), weights::Library::kTransformers);
  uint64_t bytes = 0;  // of two blocks; of the embedding only some rows are read
  for (const std::string& key : checkpoint.keys()) {
    const weights::TensorEntry& entry = checkpoint.entry(key);
    if (key.starts_with("layers.0.") || key.starts_with("layers.1.")) bytes += entry.end - entry.begin;
  }
  EXPECT_EQ(stays.bytes_read, bytes);
  EXPECT_EQ(stays.bytes_at_use, 0U);
  EXPECT_EQ(at_use.bytes_read, bytes);
  EXPECT_EQ(at_use.bytes_held, stays.bytes_held);
  EXPECT_EQ(at_use.bytes_at_use, bytes);
}

TEST_F(Qwen3TextEncoderTest, CutsTheTemplateWithThePrompt) {
  std::vector<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  LoadStatistics statistics;
  for (const bool pads : {false, true}) {
    Qwen3TextEncoder encoder = load({.states = {1}, .pads = pads}, {}, statistics);
    EXPECT_EQ(encoder.encode({{.text = prompts_[1]}}, 9).at(0).at(kTokens).size(0), 9);
  }
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(warnings[0].find("the prompt 'A Red circle above"), std::string::npos) << warnings[0];
  // Nothing of them is left.
  Qwen3TextEncoder encoder = load({.states = {1}}, {}, statistics);
  encoder.encode({{.text = prompts_[1]}, {.text = prompts_[2]}, {.text = ""}}, 3);
  ASSERT_EQ(warnings.size(), 3U);
  EXPECT_EQ(warnings[2],
            fmt::format("[{}] is 3, of which the chat template takes all, so that nothing of the prompt is "
                        "left; raise it",
                        field("max_sequence_length")));
  encoder.encode({{.text = ""}}, 3);
  EXPECT_EQ(warnings.size(), 3U);
}

// Frequencies that depend on the length count padding, though Z-Image leaves it out.
TEST_F(Qwen3TextEncoderTest, PaddingIsOfTheLengthOfAText) {
  const TemporaryFolder folder;
  std::filesystem::copy(golden_folder("qwen3-grouped"), folder.path(),
                        std::filesystem::copy_options::recursive);
  Json config = read_json(golden_folder("qwen3-grouped") / "config.json");
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 4.0}, {"rope_theta", 100.0}};
  config["max_position_embeddings"] = 20;
  std::ofstream(folder.path() / "config.json") << config;
  LoadStatistics statistics;
  const auto states = [&](int64_t most, bool pads) {
    Qwen3TextEncoder encoder(golden_folder("qwen3_tokenizer"), folder.path(), {.states = {3}, .pads = pads},
                             {}, statistics);
    return encoder.encode({{.text = "A cat"}}, most).at(0).at(kTokens);
  };
  const at::Tensor own = states(kMost, false);
  const int64_t length = own.size(0);
  ASSERT_LT(length, kMost - 10);
  EXPECT_LE(relative_error(own, states(kMost, true).narrow(0, 0, length)), kComponentTolerance);
  EXPECT_GE(relative_error(own, states(kMost - 10, false)), 1e-3);
}

TEST_F(Qwen3TextEncoderTest, PaddingIsAToken) {
  const TemporaryFolder folder;
  std::filesystem::copy(golden_folder("qwen3_tokenizer"), folder.path(),
                        std::filesystem::copy_options::recursive);
  Json config = read_json(golden_folder("qwen3_tokenizer") / "tokenizer_config.json");
  config["pad_token"] = nullptr;
  std::ofstream(folder.path() / "tokenizer_config.json") << config;
  LoadStatistics statistics;
  Qwen3TextEncoder(folder.path(), golden_folder("qwen3-grouped"), {.states = {1}}, {}, statistics);
  try {
    Qwen3TextEncoder(folder.path(), golden_folder("qwen3-grouped"), {.states = {1}, .pads = true}, {},
                     statistics);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 3);
    EXPECT_NE(std::string(error.what()).find("tokenizer_config.json] 'pad_token' must be a token"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::models
