// Tests that the graph of a trace is that of its operations, and the reader of graphs.
#include "plan/graph_trace.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "comm/recording.h"
#include "core/error.h"
#include "engine/engine.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "plan/graph_json.h"
#include "plan/trace_model.h"
#include "plan/views.h"
#include "tests/plan/stdit_xl.h"
#include "tests/support/degrees.h"
#include "tests/support/tiny_open_sora.h"
#include "tests/support/tiny_pipeline.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"

namespace tessera::plan::graph_traces {
namespace {

using parallel::degrees;

struct Subject {
  std::string name;
  const engine::Model& (*model)();
  engine::Request (*request)();
};

engine::Request image_request() {
  engine::Request request = engine::tiny_request(160, 96, 1, {"a cat", "two red squares"});
  request.resolution_binning = false;
  request.num_inference_steps = 6;
  return request;
}

engine::Request plain_image_request() {
  engine::Request request = image_request();
  request.resolution_binning = std::nullopt;
  return request;
}

engine::Request video_request() {
  engine::Request request;
  request.prompts = {"a cat"};
  request.height = 48;
  request.width = 40;
  request.video.num_frames = 20;
  request.num_inference_steps = 6;
  request.seed = 1;
  return request;
}

engine::Request edit_request() {
  engine::Request request = plain_image_request();
  request.max_sequence_length = 24;
  request.image_sizes = {"64x80", "70x101"};
  return request;
}

std::vector<Subject> subjects() {
  return {{"PixArt", engine::tiny, image_request},
          {"StableDiffusion", engine::tiny_sd, plain_image_request},
          {"ZImage", engine::tiny_z_image, plain_image_request},
          {"Flux2Klein", engine::tiny_klein, edit_request},
          {"Flux2Dev", engine::tiny_dev, edit_request},
          {"OpenSora", engine::tiny_video, video_request},
          {"OpenSora1_1", engine::tiny_video_1_1, video_request}};
}

parallel::ParallelOptions with_warmup(parallel::ParallelOptions options) {
  options.warmup_steps = 1;
  return options;
}

parallel::ParallelOptions pipefusion() {
  parallel::ParallelOptions options = degrees(1, false, 2, 1, 1, 1);
  options.num_pipeline_patch = 2;
  return with_warmup(options);
}

parallel::ParallelOptions displaced() {
  parallel::ParallelOptions options = degrees(1, false, 1, 1, 1, 1);
  options.displaced_patch_degree = 2;
  return with_warmup(options);
}

std::vector<parallel::ParallelOptions> methods() {
  return {degrees(1, false, 1, 1, 1, 1),
          degrees(1, true, 1, 1, 1, 1),
          degrees(1, false, 1, 1, 2, 1),
          degrees(1, false, 1, 2, 1, 1),
          degrees(1, false, 1, 1, 1, 2),
          pipefusion(),
          displaced()};
}

// What an event says that its node says too. Queries and keys are prepared by one node, collectives have
// operations of their own, and moments are those of a norm.
void expect_node(const Event& event, const Graph& graph, const std::string& place) {
  const GraphNode& node = graph.nodes.at(static_cast<size_t>(event.node));
  if (const auto* collective = std::get_if<CollectiveEvent>(&event.what)) {
    EXPECT_EQ(node.collective.axis, collective->axis) << place;
    EXPECT_EQ(node.collective.ranks, collective->ranks) << place;
    return;
  }
  const auto& operation = std::get<OperationEvent>(event.what);
  EXPECT_EQ(node.block, operation.block) << place;
  if (node.name != operation.name) {
    const bool is_known =
        node.name == "prepare_heads" || node.name == "group_moments" || node.name.starts_with("collective.");
    EXPECT_TRUE(is_known) << place << " is of " << node.name;
    return;
  }
  if (!is_attention(node.name)) {
    EXPECT_EQ(node.role, operation.role) << place;
  }
  // Events are of what is written into a cache, and of the queries of a part; nodes write all of the cache,
  // and sums.
  if (node.name == "write_kv_cache" || node.name == "attention_part") return;
  const TensorShape& written = graph.values.at(static_cast<size_t>(node.writes.at(0)));
  EXPECT_EQ(written, operation.output) << place;
}

// Every operation and collective of a steady step has its node, in the order of the program, and every
// collective its event.
void expect_nodes(const RankTrace& trace, int64_t steps) {
  ASSERT_NE(trace.graph, nullptr);
  const Graph& graph = *trace.graph;
  std::set<int64_t> seen;
  int64_t last = -1, count = 0;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    const std::string place = fmt::format("rank {}, event {}: {}", trace.rank, i, event_text(event));
    const bool is_held =
        event.phase == Phase::kDenoise && (event.step == kBeforeSteps || event.step == steady_step(steps));
    if (std::holds_alternative<WaitEvent>(event.what) || !is_held) {
      EXPECT_EQ(event.node, -1) << place;
      continue;
    }
    if (event.step == kBeforeSteps && event.node < 0) {  // of numbers, which are a constant
      EXPECT_TRUE(event_text(event).starts_with("aten::")) << place;
      continue;
    }
    ASSERT_GE(event.node, 0) << place;
    EXPECT_GE(event.node, last) << place;
    last = event.node;
    seen.insert(event.node);
    count += event.step == steady_step(steps) ? 1 : 0;
    expect_node(event, graph, place);
  }
  EXPECT_GT(count, 20);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    EXPECT_NE(node.name, "unwritten") << "rank " << trace.rank << ", node " << i;
    const bool has_event = node.name.starts_with("collective.") || node.name == "linear" ||
                           node.name == "conv2d" || is_attention(node.name);
    if (has_event && node.name != "no_attention" && node.name != "attention_of_parts") {
      EXPECT_TRUE(seen.contains(static_cast<int64_t>(i))) << "node " << i << ", " << node.name;
    }
  }
}

// How often the sampler runs the denoiser in so many steps.
int64_t evaluations(engine::Settings settings, const engine::Model& model, int64_t steps) {
  settings.request.num_inference_steps = settings.steps = steps;
  return engine::make_sampler(settings, model)->steps();
}

class GraphTraces : public ::testing::TestWithParam<Subject> {};

TEST_P(GraphTraces, HaveANodeForEachEventOnEveryRank) {
  const engine::Model& model = GetParam().model();
  const engine::Settings settings = engine::resolve(GetParam().request(), model);
  int64_t refusals = 0;
  for (const parallel::ParallelOptions& options : methods()) {
    SCOPED_TRACE(parallel::degrees_text(options) + " degrees");
    try {
      const parallel::Layout layout =
          parallel::resolve_layout(options, engine::workload(settings, model), std::nullopt);
      const int64_t to_trace = steps_to_trace(settings, layout),
                    steps = evaluations(settings, model, to_trace);
      Trace trace{.model = "model",
                  .settings = Json::object(),
                  .world_size = options.degrees(),
                  .steps = evaluations(settings, model, settings.steps),
                  .traced_steps = steps,
                  .ranks = {}};
      for (int64_t rank = 0; rank < trace.world_size; ++rank) {
        trace.ranks.push_back(trace_rank(settings, model, layout, rank, to_trace, {.keeps_graph = true}));
        expect_nodes(trace.ranks.back(), steps);
      }
      const std::string text = write_trace(trace);
      const Trace again = read_trace(text, "file");
      EXPECT_EQ(again, trace);
      EXPECT_EQ(write_trace(again), text);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
      ++refusals;
    }
  }
  // A U-Net has no stages, and FLUX.2 dev has one branch.
  const std::string_view name = GetParam().name;
  EXPECT_EQ(refusals, name == "StableDiffusion" || name == "Flux2Dev" ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Families, GraphTraces, ::testing::ValuesIn(subjects()),
                         [](const auto& info) { return info.param.name; });

Trace traced(const parallel::ParallelOptions& options, int64_t ranks) {
  const engine::Settings settings = engine::resolve(image_request(), engine::tiny());
  const parallel::Layout layout =
      parallel::resolve_layout(options, engine::workload(settings, engine::tiny()), std::nullopt);
  Trace trace{.model = "model", .settings = Json::object(), .world_size = ranks, .ranks = {}};
  for (int64_t rank = 0; rank < ranks; ++rank)
    trace.ranks.push_back(trace_rank(settings, engine::tiny(), layout, rank, 1, {.keeps_graph = true}));
  return trace;
}

// Without graphs a trace is what it was, and can be read as such.
TEST(TraceGraph, IsWrittenWhenItIsAskedFor) {
  Trace trace = traced(degrees(1, false, 1, 1, 1, 1), 1);
  const Json with = Json::parse(write_trace(trace));
  EXPECT_EQ(with["tessera_trace"], 2);
  EXPECT_EQ(with["graphs"].size(), 1U);
  trace.ranks[0].graph = nullptr;
  for (Event& event : trace.ranks[0].events) event.node = -1;
  const Json without = Json::parse(write_trace(trace));
  EXPECT_EQ(without["tessera_trace"], 1);
  EXPECT_FALSE(without.contains("graphs"));
}

// Pairs of blocks differ in their number, and in what they bind: the first makes views that others read too.
TEST_F(StditXl, HoldsEqualBlocksAndRanksOnce) {
  Trace trace{.model = "model", .settings = Json::object(), .world_size = 3, .ranks = {}};
  trace.ranks.push_back(trace_rank(settings(51, 240, 426), model_, whole(), 0, 1, {.keeps_graph = true}));
  Graph graph = *trace.ranks[0].graph;
  for (int64_t rank = 1; rank < 3; ++rank) {
    trace.ranks.push_back(trace.ranks[0]);
    trace.ranks.back().rank = rank;
    trace.ranks.back().graph = std::make_shared<const Graph>(graph);
    // One pair of another graph differs in more.
    for (GraphNode& node : graph.nodes) {
      if (node.block == 5 && node.name == "gated_add") node.name = "ungated_add";
    }
  }
  const Json json = Json::parse(write_trace(trace));
  ASSERT_EQ(json["graphs"].size(), 2U);
  EXPECT_EQ(json["ranks"][0]["graph"], json["ranks"][1]["graph"]);
  EXPECT_NE(json["ranks"][0]["graph"], json["ranks"][2]["graph"]);
  EXPECT_EQ(json["graphs"][1]["blocks"].size(), json["graphs"][0]["blocks"].size() + 1);
  std::set<std::string> numbers;
  std::map<std::string, int64_t> forms;
  for (const Json& each : json["graphs"][0]["nodes"]) {
    if (!each.contains("of")) continue;
    numbers.insert(each["number"].dump());
    ++forms[each["of"].dump()];
  }
  EXPECT_EQ(numbers.size(), 28U);
  EXPECT_EQ(forms, (std::map<std::string, int64_t>{{"0", 1}, {"1", 27}}));
  EXPECT_EQ(read_trace(write_trace(trace), "file"), trace);
}

TEST(TraceGraph, HasWeightsInputsAndResults) {
  const Trace trace = traced(degrees(1, false, 1, 1, 1, 2), 2);
  const Graph& graph = *trace.ranks[1].graph;
  std::map<std::string, GraphArgument> weights;
  std::set<std::string> inputs;
  for (const GraphArgument& argument : graph.arguments) {
    if (argument.kind == GraphArgument::Kind::kWeight) weights.emplace(argument.key, argument);
    if (argument.kind == GraphArgument::Kind::kInput) inputs.insert(argument.name);
  }
  EXPECT_TRUE(inputs.contains("prompt.0"));
  const GraphArgument& up = weights.at("transformer_blocks.0.ff.net.0.proj.weight");
  EXPECT_EQ(up.part, "transformer");
  ASSERT_FALSE(up.slices.empty());
  EXPECT_EQ(up.slices[0].dim, 0);
  EXPECT_EQ(up.slices[0].begin, up.whole[0] / 2);
  EXPECT_EQ(graph.values[static_cast<size_t>(up.value)].sizes[0], up.whole[0] / 2);
  ASSERT_EQ(graph.results.size(), 1U);  // the latents
  EXPECT_EQ(graph.values[static_cast<size_t>(graph.results[0].value)].sizes,
            (std::vector<int64_t>{2, 4, 20, 12}));
}

at::Tensor meta(at::IntArrayRef sizes) {
  return at::empty(sizes, at::dtype(at::kFloat).device(at::kMeta));
}

// The layers of two attentions come in the other order: only values tell which is whose.
TEST(TraceGraph, GivesAttentionTheRoleOfWhoReadsIt) {
  const c10::InferenceMode inference_mode;
  const at::Tensor q = meta({1, 4, 8}), weight = meta({8, 8}), bias = meta({8});
  const auto layer = [&](const char* role) {
    return ops::Linear(weight, bias, ops::Packing::kAsStored, role);
  };
  comm::World world = comm::recording_world(0, 1);
  RankTrace trace;
  GraphRecorder graph;
  Recorder recorder(world, trace);
  GraphTracer tracer(recorder, graph, "transformer");
  engine::Observer observer;
  recorder.follow(observer);
  tracer.follow(observer);
  observer.started(engine::Phase::kLoadDenoiser);
  for (const at::Tensor& each : {q, weight, bias}) graph.add_input("input", each);
  observer.finished(engine::Phase::kLoadDenoiser, 0);
  observer.progressed(engine::Phase::kDenoise, 0, 1);
  {
    const ops::InBlock in_block(3);
    const at::Tensor first = ops::attention(q, q, q, 2), second = ops::attention(q, q, q, 2);
    layer("blocks.3.attn2.to_out.0")(second);
    layer("blocks.3.attn1.to_out.0")(first);
  }
  const auto roles = [&] {
    std::vector<std::string> of_attention;
    const std::vector<std::string> all = roles_of(trace);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto* const operation = std::get_if<OperationEvent>(&trace.events[i].what);
      if (operation != nullptr && is_attention(operation->name)) of_attention.push_back(all[i]);
    }
    return of_attention;
  };
  using Roles = std::vector<std::string>;
  // By the order of the program both belong to the layer that comes next.
  EXPECT_EQ(roles(), (Roles{"blocks.*.attn2.attention", "blocks.*.attn2.attention"}));
  tracer.finish(trace, 1, /*keeps_graph=*/true);
  EXPECT_EQ(roles(), (Roles{"blocks.*.attn1.attention", "blocks.*.attn2.attention"}));
}

// Norms and elementwise work belong to the parts from which and to which values go. That is what the order of
// the program says too, but for what the second half of a pair computes before its first layer.
TEST_F(StditXl, HasThePartsOfItsValues) {
  RankTrace trace = trace_rank(settings(51, 240, 426), model_, whole(), 0, 1, {.keeps_graph = true});
  const std::vector<std::string> by_values = parts_of(trace);
  trace.graph = nullptr;
  for (Event& event : trace.events) event.node = -1;
  const std::vector<std::string> by_order = parts_of(trace);
  std::map<std::string, int64_t> others;
  for (size_t i = 0; i < by_order.size(); ++i) {
    if (by_values[i] != by_order[i])
      ++others[fmt::format("{}: {}, not {}", event_text(trace.events[i]), by_values[i], by_order[i])];
  }
  EXPECT_EQ(others,
            (std::map<std::string, int64_t>{{"aten::add: temporal_blocks, not spatial_blocks", 28},
                                            {"aten::flatten: temporal_blocks, not spatial_blocks", 28}}));
}

// A norm that reads the result of one layer and gives another one what it reads belongs to the latter, though
// a third comes between.
TEST(TraceGraph, GivesNormsThePartOfWhoReadsThem) {
  RankTrace trace;
  Graph graph;
  const auto node = [&](const char* name, const char* role, std::vector<ValueId> reads) {
    graph.values.push_back({{4}});
    graph.nodes.push_back({.name = name,
                           .role = role,
                           .block = 0,
                           .reads = std::move(reads),
                           .writes = {std::ssize(graph.values) - 1}});
    trace.events.push_back(
        {.what = OperationEvent{.name = name, .role = role, .block = 0, .output = {}, .inputs = {}},
         .node = std::ssize(graph.nodes) - 1});
  };
  node("linear", "spatial.0.fc1", {});
  node("layer_norm", "", {0});
  node("linear", "temporal.0.fc1", {0});
  node("linear", "final.fc", {1});
  using Parts = std::vector<std::string>;
  std::vector<Event> events = trace.events;
  for (Event& event : trace.events) event.node = -1;
  EXPECT_EQ(parts_of(trace), (Parts{"spatial", "temporal", "temporal", "final"}));
  trace.events = std::move(events);
  trace.graph = std::make_shared<const Graph>(graph);
  EXPECT_EQ(parts_of(trace), (Parts{"spatial", "final", "temporal", "final"}));
}

// What a damaged file says: the first text is replaced.
struct Damage {
  std::string text, by, message;
};

TEST(TraceGraph, IsRefusedWhenItIsDamaged) {
  const std::string text = R"({"graphs":[{
      "arguments":[{"kind":"weight","part":"unet","key":"w","dtype":"fp32","shape":[4,4],
                    "whole":[8,4],"slices":[[0,4,4]]},
                   {"kind":"constant","name":"constant.0","dtype":"fp32","shape":[2],"contents":[1.5,"inf"]}],
      "blocks":[{"reads":1,"nodes":[
          {"name":"silu","role":"blocks.*.act","reads":[0],"writes":[{"dtype":"fp32","shape":[4,4]}]},
          {"name":"aten::add","reads":[1,0],"arguments":[{"read":0},{"read":1},{"number":1.0}],
           "writes":[{"dtype":"fp32","shape":[4,4]}]}]}],
      "nodes":[{"of":0,"block":3,"number":7,"reads":[0]},
               {"name":"view","reads":[3],"writes":[{"dtype":"fp32","shape":[4]}],
                "whole":{"offset":0,"sizes":[4,4],"strides":[4,1]},
                "part":{"offset":12,"sizes":[4],"strides":[1]}},
               {"name":"collective.all_reduce","reads":[4],"writes":[{"dtype":"fp32","shape":[4]}],
                "collective":{"axis":"tp","ranks":[0,1]}}],
      "results":[{"name":"result.0","value":5}]}],
    "model":"m","settings":{},"steps":1,"tessera_trace":2,"traced_steps":1,"world_size":2,
    "ranks":[{"rank":0,"weights_bytes":[0,0,0],"graph":0,"events":[
        {"phase":"denoise","step":0,"live":0,"peak":0,"node":0,"operation":"silu","flops":1,"bytes":1,
         "inputs":[],"output":{"dtype":"fp32","shape":[4,4]}},
        {"phase":"denoise","step":0,"live":0,"peak":0,"node":3,"collective":"all_reduce","axis":"tp",
         "number":0,"bytes":0,"dtype":"fp32","ranks":[0,1],"sends":[],"receives":[]},
        {"phase":"denoise","step":0,"live":0,"peak":0,"wait":0}]}]})";
  const Trace trace = read_trace(text, "file");
  ASSERT_EQ(trace.ranks[0].graph->nodes.size(), 4U);
  EXPECT_EQ(trace.ranks[0].graph->nodes[0].role, "blocks.7.act");
  EXPECT_EQ(trace.ranks[0].graph->nodes[1].reads, (std::vector<ValueId>{2, 0}));
  EXPECT_EQ(read_trace(write_trace(trace), "file"), trace);
  const std::vector<Damage> all = {
      {R"("reads":[4])", R"("reads":[5])", "graphs[0]: nodes[2]] value 5 is not there yet, only 5 are"},
      {R"("reads":[1,0])", R"("reads":[2,0])", "value 2 of the block is not there yet, only 2 are"},
      {R"("reads":[1,0])", R"("reads":[-2,0])", "'reads'"},
      {R"("number":7,"reads":[0])", R"("number":7,"reads":[2])", "value 2 is not there yet, only 2 are"},
      {R"("number":7,"reads":[0])", R"("number":7,"reads":[0,1])", "must be 1 values"},
      {R"("number":7,)", "", "the role 'blocks.*.act' has a number that is not there"},
      {R"("of":0)", R"("of":1)", "a block below 1"},
      {R"({"read":1})", R"({"read":2})", "what attributes and arguments refer to"},
      {R"("kind":"weight")", R"("kind":"bias")", "weight, input, constant or cache"},
      {R"("slices":[[0,4,4]])", R"("slices":[[0,5,4]])", "in 'whole'"},
      {R"([1.5,"inf"])", R"([1.5])", "a number for each element, or a hash"},
      {R"([1.5,"inf"])", R"([1.5,"i"])", "must be numbers"},
      {R"("offset":12)", R"("offset":13)", "a view has not the shapes of what it reads and writes"},
      {R"("ranks":[0,1]}})", R"("ranks":[0,2]}})", "ranks below 2"},
      {R"("value":5)", R"("value":6)", "results[0]] value 6 is not there yet, only 6 are"},
      {R"("node":3)", R"("node":4)", "event 1] is node 4, and the graph of the rank has 4"},
      {R"("node":3)", R"("node":0)", "event 1] is node 0, which is of another kind"},
      {R"("graph":0)", R"("graph":1)", "below 1"},
  };
  for (const Damage& each : all) {
    std::string damaged = text;
    ASSERT_NE(damaged.find(each.text), std::string::npos) << each.text;
    damaged.replace(damaged.find(each.text), each.text.size(), each.by);
    try {
      read_trace(damaged, "file");
      ADD_FAILURE() << each.by << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      const std::string message = error.what();
      EXPECT_NE(message.find(each.message), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace tessera::plan::graph_traces
