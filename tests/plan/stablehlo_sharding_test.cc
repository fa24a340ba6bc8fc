// Shardings of programs: what each method divides, as its graph of a rank tells it.
#include "plan/stablehlo_sharding.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "plan/record_program.h"
#include "plan/stablehlo.h"
#include "tests/support/tiny_open_sora.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::plan {
namespace {

using parallel::degrees;
using Dims = ValueSharding;

engine::Request request() {
  engine::Request request = engine::tiny_request(64, 96, 1, {"a cat and two red squares"});
  request.negative_prompts = {"a"};
  return request;
}

ShardedGraph sharded_pixart(const parallel::ParallelOptions& options, const engine::Request& of = request(),
                            const ShardingOptions& wanted = {}) {
  const engine::Settings settings = engine::resolve(of, engine::tiny());
  const parallel::Layout layout =
      parallel::resolve_layout(options, engine::workload(settings, engine::tiny()), std::nullopt);
  return record_sharded_programs("denoiser", settings, engine::tiny(), layout, wanted).front();
}

Dims of_argument(const ShardedGraph& sharded, const std::string& name) {
  for (size_t i = 0; i < sharded.graph.arguments.size(); ++i) {
    const GraphArgument& each = sharded.graph.arguments[i];
    if (each.name == name || each.key == name) return sharded.sharding.arguments[i];
  }
  ADD_FAILURE() << "no argument " << name;
  return {};
}

// The constraints of the first node of this name and role.
const NodeSharding& of_node(const ShardedGraph& sharded, const std::string& name, const std::string& role) {
  const auto& nodes = sharded.graph.nodes;
  const auto found = std::ranges::find_if(nodes, [&](const GraphNode& node) {
    return node.name == name && node.role == role && node.block <= 0;
  });
  if (found == nodes.end()) throw std::runtime_error("no node " + name + " " + role);
  return sharded.sharding.nodes[static_cast<size_t>(found - nodes.begin())];
}

const std::string kBlock = "transformer_blocks.0.";

TEST(Sharding, TensorDividesWeightsByOutputsAndThenByInputs) {
  const ShardedGraph sharded = sharded_pixart(degrees(1, false, 1, 1, 1, 2));
  EXPECT_EQ(of_argument(sharded, kBlock + "attn1.to_q.weight"), (Dims{{"tp"}, {}}));
  EXPECT_EQ(of_argument(sharded, kBlock + "attn1.to_q.bias"), (Dims{{"tp"}}));
  EXPECT_EQ(of_argument(sharded, kBlock + "attn1.to_out.0.weight"), (Dims{{}, {"tp"}}));
  // The first rank adds it for all.
  EXPECT_EQ(of_argument(sharded, kBlock + "attn1.to_out.0.bias"), (Dims{{}}));
  EXPECT_EQ(of_argument(sharded, kBlock + "scale_shift_table"), (Dims{{}, {}}));
  EXPECT_EQ(of_argument(sharded, "latents"), (Dims{{}, {}, {}, {}}));
  const NodeSharding& down = of_node(sharded, "linear", kBlock + "ff.net.2");
  EXPECT_EQ(down.reads, (std::vector<std::vector<Dims>>{{{{}, {}, {"tp"}}}}));
  EXPECT_EQ(down.writes, (std::vector<std::vector<Dims>>{{{{}, {}, {}}}}));
  EXPECT_EQ(sdy_mesh(sharded.sharding.mesh), "sdy.mesh @mesh = <[\"tp\"=2]>");
}

// As in Megatron-LM: the sum is divided by tokens, and the next pair of layers takes it whole.
TEST(Sharding, SequenceParallelismDividesSumsByTokens) {
  const ShardingOptions wanted{.sequence_parallel = true};
  const ShardedGraph sharded = sharded_pixart(degrees(1, false, 1, 1, 1, 2), request(), wanted);
  for (const char* const role : {"attn1.to_out.0", "attn2.to_out.0", "ff.net.2"})
    EXPECT_EQ(of_node(sharded, "linear", kBlock + role).writes,
              (std::vector<std::vector<Dims>>{{{{}, {"tp"}, {}}}}))
        << role;
  const NodeSharding& first = of_node(sharded, "linear", kBlock + "ff.net.0.proj");
  EXPECT_EQ(first.reads, (std::vector<std::vector<Dims>>{{{{}, {}, {}}}}));
  EXPECT_EQ(first.writes, (std::vector<std::vector<Dims>>{{{{}, {}, {"tp"}}}}));
  EXPECT_EQ(of_argument(sharded, kBlock + "ff.net.2.weight"), (Dims{{}, {"tp"}}));
  EXPECT_EQ(of_argument(sharded, "latents"), (Dims{{}, {}, {}, {}}));
  const ShardedGraph with_ring = sharded_pixart(degrees(1, false, 1, 2, 1, 2), request(), wanted);
  EXPECT_EQ(of_node(with_ring, "linear", kBlock + "ff.net.2").writes,
            (std::vector<std::vector<Dims>>{{{{}, {"ring", "tp"}, {}}}}));
}

TEST(Sharding, UlyssesChangesFromTokensToHeads) {
  const ShardedGraph sharded = sharded_pixart(degrees(1, false, 1, 1, 2, 1));
  EXPECT_EQ(of_argument(sharded, kBlock + "attn1.to_q.weight"), (Dims{{}, {}}));
  EXPECT_EQ(of_argument(sharded, "latents"), (Dims{{}, {}, {"ulysses"}, {}}));
  EXPECT_EQ(sharded.sharding.results, (std::vector<Dims>{{{}, {}, {"ulysses"}, {}}}));
  const NodeSharding& attention = of_node(sharded, "attention", "");
  const Dims tokens = {{}, {"ulysses"}, {}}, heads = {{}, {}, {"ulysses"}};
  EXPECT_EQ(attention.reads, (std::vector<std::vector<Dims>>(3, {tokens, heads})));
  EXPECT_EQ(attention.writes, (std::vector<std::vector<Dims>>{{heads}}));
}

TEST(Sharding, CfgAndDataDivideSamples) {
  engine::Request two = request();
  two.num_images_per_prompt = 2;
  const ShardedGraph sharded = sharded_pixart(degrees(2, true, 1, 1, 1, 1), two);
  EXPECT_EQ(sdy_mesh(sharded.sharding.mesh), "sdy.mesh @mesh = <[\"dp\"=2, \"cfg\"=2]>");
  EXPECT_EQ(of_argument(sharded, "latents"), (Dims{{"cfg", "dp"}, {}, {}, {}}));
  EXPECT_EQ(of_argument(sharded, "prompt.0"), (Dims{{}, {}}));
  EXPECT_EQ(of_argument(sharded, "timestep"), (Dims{{}}));
  EXPECT_EQ(of_node(sharded, "attention_to_prompts", "").reads,
            (std::vector<std::vector<Dims>>{{{{"cfg", "dp"}, {}, {}}}}));
}

// Queries, keys and values lie in one tensor of the file, and a rank has some heads of each.
TEST(Sharding, LayersOfOneTensorAreArgumentsOfTheirOwn) {
  const engine::Model& model = engine::tiny_video();
  engine::Request request;
  request.prompts = {"a cat"};
  request.height = 48;
  request.width = 40;
  request.video.num_frames = 20;
  const engine::Settings settings = engine::resolve(request, model);
  const parallel::Layout layout = parallel::resolve_layout(degrees(1, false, 1, 1, 1, 2),
                                                           engine::workload(settings, model), std::nullopt);
  const ShardedGraph sharded = record_sharded_programs("denoiser", settings, model, layout).front();
  std::vector<int64_t> begins;
  int64_t rows = 0;
  for (const GraphArgument& each : sharded.graph.arguments) {
    if (each.key != "spatial_blocks.0.attn.qkv.weight") continue;
    rows = each.whole.front();
    for (const weights::Slice& slice : each.slices) {
      if (slice.dim == 0) begins.push_back(slice.begin);
    }
  }
  EXPECT_EQ(begins, (std::vector<int64_t>{0, rows / 3, 2 * rows / 3}));
  EXPECT_EQ(of_argument(sharded, "spatial_blocks.0.attn.qkv.weight"), (Dims{{"tp"}, {}}));
  const auto& nodes = sharded.graph.nodes;
  EXPECT_EQ(std::ranges::count_if(nodes,
                                  [](const GraphNode& node) {
                                    return node.name == "linear" && node.role == "spatial_blocks.0.attn.qkv";
                                  }),
            3);
}

TEST(Sharding, AMeshOfTwoAxes) {
  const ShardingOptions wanted{.mesh = {{2, 2}}};
  const ShardedGraph two = sharded_pixart(degrees(1, false, 1, 2, 1, 2), request(), wanted);
  EXPECT_EQ(sdy_mesh(two.sharding.mesh), "sdy.mesh @mesh = <[\"x\"=2, \"y\"=2]>");
  EXPECT_EQ(of_argument(two, "latents"), (Dims{{}, {}, {"x"}, {}}));
  EXPECT_EQ(of_argument(two, kBlock + "attn1.to_q.weight"), (Dims{{"y"}, {}}));
  const ShardedGraph one = sharded_pixart(degrees(1, false, 1, 4, 1, 1), request(), wanted);
  EXPECT_EQ(of_argument(one, "latents"), (Dims{{}, {}, {"x", "y"}, {}}));
  EXPECT_THROW(sharded_pixart(degrees(1, false, 1, 1, 2, 1), request(), wanted), Error);
}

TEST(Sharding, PartsOfDifferentSizesAreRefused) {
  engine::Request odd = request();
  odd.height = 80;
  try {
    sharded_pixart(degrees(1, false, 1, 2, 1, 1), odd);
    ADD_FAILURE() << "five rows on two ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("which is no equal part of"), std::string::npos) << error.what();
  }
  EXPECT_THROW(sharded_pixart(degrees(1, false, 2, 1, 1, 1)), Error);  // PipeFusion
  // Five rows of five tokens.
  odd.width = 80;
  EXPECT_NO_THROW(sharded_pixart(degrees(1, false, 1, 1, 1, 2), odd));
  EXPECT_THROW(sharded_pixart(degrees(1, false, 1, 1, 1, 2), odd, {.sequence_parallel = true}), Error);
}

TEST(Sharding, AProgramSaysItsMeshAndShardings) {
  const ShardedGraph sharded = sharded_pixart(degrees(1, false, 1, 1, 2, 1));
  const Program program = stablehlo_program({&sharded.graph, 1}, 0,
                                            {.model = "M", .part = "P", .dtype = "fp32"}, &sharded.sharding);
  EXPECT_TRUE(program.text.starts_with("module @tessera {\n  sdy.mesh @mesh = <[\"ulysses\"=2]>\n"));
  EXPECT_NE(program.text.find(
                "tensor<2x4x8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {\"ulysses\"}, {}]>}"),
            std::string::npos);
  EXPECT_EQ(program.description["mesh"].dump(), R"({"ulysses":2})");
  EXPECT_EQ(program.description["results"][0]["sharding"].dump(), R"([[],[],["ulysses"],[]])");
}

}  // namespace
}  // namespace tessera::plan
