// The recorder of programs: what is read and written, in memory that tensors share.
#include "plan/graph_recorder.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/device.h"
#include "core/error.h"
#include "models/flux2.h"
#include "models/qwen3.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/modulate.h"
#include "plan/graph_roles.h"
#include "plan/stablehlo.h"
#include "tests/support/golden.h"

namespace tessera::plan {
namespace {

at::Tensor meta(at::IntArrayRef sizes) {
  return at::empty(sizes, at::dtype(at::kFloat).device(at::kMeta));
}

std::vector<std::string> names(const Graph& graph) {
  std::vector<std::string> all;
  for (const GraphNode& node : graph.nodes) all.push_back(node.name);
  return all;
}

using Names = std::vector<std::string>;

class GraphRecording : public ::testing::Test {
 private:
  const c10::InferenceMode inference_mode_;
};

TEST_F(GraphRecording, ViewsAreOfTheValueOfAStorage) {
  const at::Tensor x = meta({4, 6});
  GraphRecorder recorder;
  recorder.add_input("x", x);
  const at::Tensor part = x.narrow(1, 2, 3).t();
  recorder.add_result("twice", part * 2);
  const Graph graph = recorder.take();
  ASSERT_EQ(names(graph), (Names{"view", "aten::mul"}));
  EXPECT_EQ(graph.nodes[0].reads, std::vector<ValueId>{graph.arguments[0].value});
  EXPECT_EQ(graph.nodes[0].part, (Geometry{.offset = 2, .sizes = {3, 4}, .strides = {1, 6}}));
  EXPECT_EQ(graph.results[0].value, graph.nodes[1].writes[0]);
}

// What was read before a write is not what is read after it.
TEST_F(GraphRecording, WritesMakeNewValues) {
  const at::Tensor x = meta({2, 3});
  GraphRecorder recorder;
  recorder.add_input("x", x);
  const at::Tensor before = x + 1;
  x.select(0, 1).mul_(3);
  const at::Tensor after = x + 1;
  recorder.add_result("before", before);
  recorder.add_result("after", after);
  const Graph graph = recorder.take();
  ASSERT_EQ(names(graph), (Names{"aten::add", "view", "aten::mul_", "write", "aten::add"}));
  EXPECT_EQ(graph.nodes[0].reads[0], graph.arguments[0].value);
  EXPECT_EQ(graph.nodes[3].reads, (std::vector<ValueId>{graph.arguments[0].value, graph.nodes[2].writes[0]}));
  EXPECT_EQ(graph.nodes[4].reads[0], graph.nodes[3].writes[0]);
}

TEST_F(GraphRecording, PartsOfMemoryAreWrittenOneByOne) {
  const at::Tensor x = meta({2, 3});
  GraphRecorder recorder;
  recorder.add_input("x", x);
  const at::Tensor both = at::empty({4, 3}, x.options());
  both.narrow(0, 0, 2).copy_(x);
  both.narrow(0, 2, 2).copy_(x);
  recorder.add_result("both", both);
  const Graph graph = recorder.take();
  // A storage of which nothing was known is a row of elements.
  EXPECT_EQ(names(graph), (Names{"aten::copy_", "empty", "write", "aten::copy_", "write", "view"}));
}

// What no result needs is left out, weights too; contents that are the same are one constant.
TEST_F(GraphRecording, KeepsWhatResultsNeed) {
  const at::Tensor x = meta({2, 3});
  GraphRecorder recorder;
  recorder.add_input("x", x);
  const at::Tensor unused = x * at::full({3}, 7.0F).to(at::kMeta);
  const at::Tensor a = at::arange(3, at::kFloat).to(at::kMeta), b = at::arange(3, at::kFloat).to(at::kMeta);
  const at::Tensor sum = x + a + b;
  recorder.add_result("sum", sum);
  const Graph graph = recorder.take();
  EXPECT_EQ(names(graph), (Names{"aten::to", "aten::to", "aten::add", "aten::add"}));
  ASSERT_EQ(graph.arguments.size(), 2U);
  EXPECT_EQ(graph.arguments[1].kind, GraphArgument::Kind::kConstant);
  EXPECT_EQ(graph.nodes[0].reads, graph.nodes[1].reads);
}

// Operations are what they are, with the attributes that decide what they compute, and not what they call.
TEST_F(GraphRecording, OperationsAreNodes) {
  const at::Tensor x = meta({1, 4, 8}), vector = meta({8});
  const ops::Linear layer(meta({8, 8}), meta({8}), ops::Packing::kAsStored, "layer");
  GraphRecorder recorder;
  recorder.add_input("x", x);
  recorder.add_input("vector", vector);
  recorder.add_result("y", layer(ops::modulated_layer_norm(x, vector, vector, 1e-5), ops::Activation::kSilu));
  const Graph graph = recorder.take();
  EXPECT_EQ(names(graph).front(), "modulated_layer_norm");
  EXPECT_EQ(names(graph).back(), "silu");
  EXPECT_EQ(std::get<double>(*graph.nodes[0].find("epsilon")), 1e-5);
  EXPECT_EQ(graph.nodes.back().role, "layer");
}

// Attention is what the layer that reads its result makes of it, through whatever has no weights.
TEST_F(GraphRecording, AttentionHasItsRoleFromItsReader) {
  const at::Tensor q = meta({1, 4, 8}), weight = meta({8, 8}), bias = meta({8});
  const auto layer = [&](const char* role) {
    return ops::Linear(weight, bias, ops::Packing::kAsStored, role);
  };
  const ops::InBlock in_block(3);
  GraphRecorder recorder;
  for (const at::Tensor& each : {q, weight, bias}) recorder.add_input("input", each);
  const at::Tensor first = ops::attention(q, q, q, 2), second = ops::attention(q, q, q, 2);
  const at::Tensor of_second = layer("blocks.3.attn2.to_out.0")(second * 2);
  recorder.add_result("y", of_second + layer("blocks.3.attn1.proj")(first.transpose(0, 1)));
  const Graph graph = recorder.take();
  std::vector<std::string> roles;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].name == "attention") roles.push_back(roles_of(graph)[i]);
  }
  EXPECT_EQ(roles, (Names{"blocks.3.attn1.attention", "blocks.3.attn2.attention"}));
  const std::string text = stablehlo_program({&graph, 1}, 0, {}).text;
  EXPECT_NE(text.find("loc(\"attention blocks.3.attn2.attention\"(\"block 3\":2:0))"), std::string::npos)
      << text;
}

// What a step leaves in memory, as far as it comes of its inputs, is an argument of the next one; all else
// that was computed before is computed anew.
TEST_F(GraphRecording, ALaterStepTakesWhatAnEarlierOneLeft) {
  const at::Tensor weight = meta({2, 3}), first = meta({2, 3}), second = meta({2, 3}), empty = meta({0, 3});
  GraphRecorder recorder;
  recorder.add_input("weight", weight);
  const at::Tensor prepared = weight * 2, kept = at::empty({4, 3}, weight.options());
  recorder.add_step_input("x", first);
  kept.narrow(0, 0, 2).copy_(first + prepared);
  kept.narrow(0, 2, 2).copy_(first);
  recorder.add_result("y", first * 3);
  recorder.begin_later_step();
  recorder.add_step_input("x", second);
  kept.narrow(0, 0, 2).copy_(second);
  recorder.add_result("y", kept.narrow(0, 1, 2) + prepared);
  const auto [before, after] = recorder.take_steps();

  const auto arguments = [](const Graph& graph) {
    Names all;
    for (const GraphArgument& each : graph.arguments) all.push_back(each.name);
    return all;
  };
  const auto results = [](const Graph& graph) {
    Names all;
    for (const GraphResult& each : graph.results) all.push_back(each.name);
    return all;
  };
  EXPECT_EQ(arguments(before), (Names{"weight", "x"}));
  EXPECT_EQ(results(before), (Names{"y", "cache.0"}));
  EXPECT_EQ(arguments(after), (Names{"weight", "cache.0", "x"}));
  EXPECT_EQ(results(after), (Names{"y", "cache.0"}));
  EXPECT_EQ(after.arguments[1].kind, GraphArgument::Kind::kCache);
  EXPECT_EQ(after.values[static_cast<size_t>(after.arguments[1].value)].sizes, std::vector<int64_t>{12});
  EXPECT_EQ(names(after), (Names{"aten::mul", "aten::copy_", "write", "view", "aten::add"}));
}

// Something that writes it was not recorded.
TEST_F(GraphRecording, MemoryThatNothingWroteIsNoValue) {
  const at::Tensor x = meta({2, 3});
  GraphRecorder recorder;
  recorder.add_input("x", x);
  recorder.add_result("y", x + at::empty({3}, x.options()));
  EXPECT_EQ(names(recorder.take()), (Names{"unwritten", "aten::add"}));
}

TEST_F(GraphRecording, AnOperationWithoutAFormIsNamed) {
  const at::Tensor x = meta({2, 3});
  GraphRecorder recorder;
  recorder.add_input("x", x);
  recorder.add_result("y", at::cumsum(x, 0));
  try {
    const Graph graph = recorder.take();
    stablehlo_program({&graph, 1}, 0, {});
    ADD_FAILURE() << "a program without a form for it";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "[stablehlo] the operation 'aten::cumsum' has no form in StableHLO");
  }
}

// Strides that do not divide one another make no box of the memory.
TEST_F(GraphRecording, AViewWithoutAFormIsNamed) {
  const at::Tensor x = meta({3, 3});
  GraphRecorder recorder;
  recorder.add_input("x", x);
  recorder.add_result("y", x.as_strided({2, 2}, {3, 2}) * 2);
  const Graph graph = recorder.take();
  EXPECT_THROW(stablehlo_program({&graph, 1}, 0, {}), Error);
}

TEST_F(GraphRecording, AProgramSaysWhatItIsGivenAndGives) {
  const at::Tensor x = meta({2, 3});
  GraphRecorder recorder;
  recorder.add_input("x", x);
  recorder.add_result("y", x.t() * 2);
  const Graph graph = recorder.take();
  const Program program = stablehlo_program(
      {&graph, 1}, 0, {.model = "M", .part = "P", .dtype = "fp32", .rank = 1, .world_size = 2});
  EXPECT_EQ(
      program.text,
      "module @tessera {\n"
      "  func.func public @main(%arg0: tensor<2x3xf32>) -> (tensor<3x2xf32>) {\n"
      "    %1 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32> loc(#loc1)\n"
      "    %2 = stablehlo.constant dense<2.00000000000000000e+00> : tensor<f32> loc(#loc2)\n"
      "    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<3x2xf32> loc(#loc2)\n"
      "    %4 = stablehlo.multiply %1, %3 : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32> "
      "loc(#loc2)\n"
      "    return %4 : tensor<3x2xf32>\n"
      "  }\n"
      "} loc(\"P\"(\"M\"))\n"
      "#loc1 = loc(\"view\"(\"program\":1:0))\n"
      "#loc2 = loc(\"aten::mul\"(\"program\":2:0))\n");
  EXPECT_EQ(program.description["arguments"],
            OrderedJson::parse(R"([{"name": "x", "kind": "input", "dtype": "f32", "shape": [2, 3]}])"));
  EXPECT_EQ(program.description["results"],
            OrderedJson::parse(R"([{"name": "y", "dtype": "f32", "shape": [3, 2]}])"));
  EXPECT_EQ(program.description["rank"], 1);
}

TEST_F(GraphRecording, EachOperationOfQwen3HasAForm) {
  const MetaStandsFor device{at::kCUDA};
  const JsonConfig json = JsonConfig::read(golden_folder("qwen3-grouped") / "config.json");
  weights::ShapeOnlySource shapes;
  GraphRecorder recorder;
  const models::Qwen3Encoder encoder(weights::Scope(shapes, {.device = at::kMeta}), models::Qwen3Config(json),
                                     {1, -1});
  recorder.add_result("states", encoder({{{4, 2, 7, 3, 3}, Range{0, 3}}}).at(0));
  const Graph graph = recorder.take();
  const Program program = stablehlo_program({&graph, 1}, 0, {});
  // Scores of three tokens, which see those before them, and of two of padding.
  EXPECT_NE(program.text.find("tensor<1x6x3x3xf32>"), std::string::npos);
  EXPECT_NE(program.text.find("tensor<1x6x2x3xf32>"), std::string::npos);
  EXPECT_EQ(program.description["results"],
            OrderedJson::parse(R"([{"name": "states", "dtype": "f32", "shape": [5, 44]}])"));
  const OrderedJson& arguments = program.description["arguments"];
  const auto named = [&](const char* name) {
    return std::count_if(arguments.begin(), arguments.end(),
                         [&](const OrderedJson& each) { return each["name"] == name; });
  };
  EXPECT_EQ(named("tokens"), 1) << arguments;
  EXPECT_EQ(arguments.size(), 2U + 5 * 11 + 1);
}

TEST_F(GraphRecording, EachOperationOfFlux2HasAForm) {
  const MetaStandsFor device{at::kCUDA};
  const models::Flux2Config config(JsonConfig::read(golden_folder("flux2") / "config.json"));
  weights::ShapeOnlySource shapes;
  GraphRecorder recorder;
  const models::Flux2Transformer model(weights::Scope(shapes, {.device = at::kMeta}), config,
                                       models::LocalBlocks(config.blocks()));
  const std::vector<models::Conditioning> prompts = {{{models::kTokens, meta({7, 14})}}};
  const at::Tensor latents = meta({1, 8, 4, 7}), time = meta({1});
  recorder.add_input("text", prompts[0].at(models::kTokens));
  recorder.add_input("latents", latents);
  recorder.add_input("timestep", time);
  const std::vector<int64_t> prompt_of = {0};
  const models::LatentShape latent_shape{4, 7, 16};
  nn::Tokens tokens(parallel::Grid{.rows = 4, .columns = 7});
  const auto forward = model.start({prompts, prompt_of, latent_shape, tokens});
  forward->begin({500, time});
  models::Hidden hidden = forward->embed(latents);
  for (int64_t i = 0; i < config.blocks(); ++i) forward->block(i, hidden);
  recorder.add_result("prediction", forward->head(hidden));
  const Graph graph = recorder.take();
  const Program program = stablehlo_program({&graph, 1}, 0, {});
  EXPECT_NE(program.text.find("tensor<1x5x35x35xf32>"), std::string::npos);  // scores of picture and text
  EXPECT_EQ(program.description["results"],
            OrderedJson::parse(R"([{"name": "prediction", "dtype": "f32", "shape": [1, 8, 4, 7]}])"));
}

}  // namespace
}  // namespace tessera::plan
