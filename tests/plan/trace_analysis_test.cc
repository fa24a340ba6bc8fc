// Tests the times of traces on machines: bounds that are counted from the trace alone, sums by hand, and
// measurements that were published.
#include "plan/hardware/trace_analysis.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "plan/recorder.h"
#include "plan/run_costs.h"
#include "plan/trace_model.h"
#include "plan/views.h"
#include "tests/plan/machines.h"
#include "tests/plan/stdit_xl.h"
#include "tests/support/degrees.h"
#include "tests/support/tiny_open_sora.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"

namespace tessera::plan {
namespace {

constexpr double kSlack = 1 - 1e-9;

double real(int64_t value) {
  return static_cast<double>(value);
}

RankTrace trace_of(const engine::Model& model, engine::Request request, at::ScalarType dtype) {
  request.prompts = {"a cat"};
  request.seed = 1;
  request.dtype = dtype;
  request.resolution_binning = std::nullopt;
  return trace_rank(engine::resolve(request, model), model,
                    parallel::Layout{.stage_blocks = {model.shape.blocks}}, 0, 1);
}

std::vector<RankTrace> traces() {
  engine::Request image, video;
  image.height = image.width = 64;
  video.video.num_frames = 20;
  video.height = 48;
  video.width = 40;
  std::vector<RankTrace> all;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    all.push_back(trace_of(engine::tiny(), image, dtype));
    all.push_back(trace_of(engine::tiny_sd(), image, dtype));
    all.push_back(trace_of(engine::tiny_video(), video, dtype));
  }
  return all;
}

Machine random_machine_of_all_dtypes(std::mt19937& random) {
  Machine machine = random_machine(random);
  for (auto* const rates : {&machine.gemm_rates, &machine.vector_rates}) {
    rates->insert({{"fp32", rates->at("bf16") / 2}, {"fp16", rates->at("bf16")}});
  }
  return machine;
}

// No operation of a trace is faster than its FLOPs or its bytes, which the trace says.
TEST(TraceAnalysis, NoOperationIsFasterThanItCanBe) {
  std::mt19937 random(5);
  int64_t mapped = 0;
  for (const RankTrace& trace : traces()) {
    for (const Event& event : trace.events) {
      const auto* const operation = std::get_if<OperationEvent>(&event.what);
      if (operation == nullptr || operation->bytes == 0) continue;
      const Machine machine = random_machine_of_all_dtypes(random);
      const std::string dtype = c10::elementSize(operation->output.dtype) >= 4 ? "fp32" : "bf16";
      double latency = 0, noc_bytes = 0, compute = 0;
      bool fits = true;
      for (const Work& work : works_of(*operation, dtype_bytes(dtype))) {
        const Mapping mapping = map_operator({"op", work}, machine, dtype);
        fits = fits && mapping.fits();
        latency += mapping.latency;
        compute += mapping.compute;
        noc_bytes += mapping.noc_bytes;
      }
      if (!fits) continue;
      ++mapped;
      // The bias of T5's scores is added by the vector units.
      const double added = operation->name == "biased_attention"
                               ? real(operation->inputs[0].sizes[0]) *
                                     real(c10::multiply_integers(operation->inputs[3].sizes)) /
                                     real(operation->inputs[3].sizes[0])
                               : 0;
      const bool product = is_product(operation->name);
      const double of_gemm = product ? real(operation->flops) - added : 0;
      const double of_vector = product ? added : real(operation->flops);
      const double roof = of_gemm / machine.gemm_rate(dtype) + of_vector / machine.vector_rate(dtype);
      EXPECT_GE(compute, roof * kSlack) << event_text(event);
      EXPECT_GE(latency, roof * kSlack) << event_text(event);
      EXPECT_GE(latency, real(operation->bytes) / machine.dram_bandwidth * kSlack) << event_text(event);
      EXPECT_GE(latency, noc_bytes / machine.noc_bandwidth * kSlack) << event_text(event);
    }
  }
  EXPECT_GT(mapped, 1000);
}

// Nor does an operation move more bytes than the trace says, but for the last row of a flat tensor.
TEST(TraceAnalysis, AnOperationMovesItsBytes) {
  constexpr int64_t kMostOfARow = 255;
  for (const RankTrace& trace : traces()) {
    for (const Event& event : trace.events) {
      const auto* const operation = std::get_if<OperationEvent>(&event.what);
      if (operation == nullptr) continue;
      const int64_t element_bytes = c10::elementSize(operation->output.dtype);
      double most = real(operation->bytes), moved = 0;
      for (const Work& work : works_of(*operation, element_bytes)) {
        if (std::holds_alternative<VectorWork>(work)) most += real(kMostOfARow * element_bytes);
        moved += demand_of(work).elements * real(element_bytes);
      }
      EXPECT_GE(moved, real(operation->bytes) * kSlack) << event_text(event);
      EXPECT_LE(moved * kSlack, most) << event_text(event);
    }
  }
}

TensorShape shape(std::vector<int64_t> sizes, at::ScalarType dtype = at::kBFloat16) {
  return {std::move(sizes), dtype};
}

OperationEvent layer(int64_t rows, int64_t inner, int64_t columns) {
  return {.name = "linear",
          .role = "blocks.3.fc1",
          .output = shape({rows, columns}),
          .inputs = {shape({rows, inner}), shape({columns, inner})},
          .flops = 2 * rows * inner * columns,
          .bytes = 2 * (rows * inner + inner * columns + rows * columns)};
}

// A window of 3 x 3 of each pixel is a row of 9 times the channels, but its bytes come once.
TEST(TraceAnalysis, AConvolutionIsAProduct) {
  const OperationEvent operation{
      .name = "conv2d",
      .role = {},
      .output = shape({2, 64, 96, 80}),
      .inputs = {shape({2, 32, 96, 80}), shape({64, 32, 3, 3}), shape({64})},
      .flops = int64_t{2} * 2 * 64 * 96 * 80 * 32 * 9,
      .bytes = int64_t{2} * (2 * 64 * 96 * 80 + 2 * 32 * 96 * 80 + 64 * 32 * 9 + 64)};
  const std::vector<Work> works = works_of(operation, 2);
  ASSERT_EQ(works.size(), 1U);
  const auto& work = std::get<GemmWork>(works[0]);
  EXPECT_EQ(work.rows, 2 * 96 * 80);
  EXPECT_EQ(work.inner, 32 * 9);
  EXPECT_EQ(work.columns, 64);
  EXPECT_DOUBLE_EQ(work.overlap, 9);
  EXPECT_DOUBLE_EQ(demand_of(work).elements, real(operation.bytes) / 2);
  Machine machine = tx8();
  machine.sram_bytes = 1e9;  // all at once
  const Mapping mapping = map_gemm(work, machine, "bf16");
  EXPECT_NEAR(mapping.dram_bytes / real(operation.bytes), 1, 1e-4);
}

Event event(Phase phase, int64_t step, std::variant<OperationEvent, CollectiveEvent, WaitEvent> what) {
  return {.phase = phase, .step = step, .what = std::move(what)};
}

// Three traced steps of ten: the second stands for eight. What is before and after the loop runs once.
TEST(TraceAnalysis, AddsUpARun) {
  OperationEvent gelu = layer(512, 256, 1024);
  gelu.name = "gelu_tanh";
  gelu.inputs.clear();
  gelu.bytes = 0;
  const CollectiveEvent exchange{.axis = "tp",
                                 .name = "all_gather",
                                 .bytes = 1000,
                                 .ranks = {0, 1},
                                 .sends = {{1, 1000}},
                                 .receives = {{1, 3000}}};
  Trace trace{.model = "m", .settings = {}, .world_size = 2, .steps = 10, .traced_steps = 3, .ranks = {}};
  trace.ranks.push_back(
      {.rank = 0,
       .events = {
           event(Phase::kEncode, 0, layer(64, 64, 64)),
           event(Phase::kDenoise, kBeforeSteps, layer(96, 64, 64)),
           event(Phase::kDenoise, 0, layer(512, 256, 1024)), event(Phase::kDenoise, 1, layer(512, 256, 1024)),
           event(Phase::kDenoise, 1, gelu), event(Phase::kDenoise, 1, exchange),
           event(Phase::kDenoise, 1, WaitEvent{0}), event(Phase::kDenoise, 2, layer(512, 256, 1024)),
           event(Phase::kDenoise, 3, layer(32, 32, 32)), event(Phase::kDecode, 0, layer(128, 64, 64))}});
  const Machine machine = tx8();
  const std::string dtype = "bf16";
  OperationCosts costs(machine);
  const Link link{.kind = "die-to-die", .bandwidth = 1e6, .latency = 0.5, .measured = {}};
  const TraceAnalysis analysis = analyze_trace(trace, trace.ranks[0], 10, costs, link);
  const auto seconds = [&](int64_t rows, int64_t inner, int64_t columns, double activation) {
    return map_gemm({rows, inner, columns, activation}, machine, dtype).latency;
  };
  EXPECT_NEAR(analysis.computing(Phase::kEncode), seconds(64, 64, 64, 0), 1e-12);
  EXPECT_NEAR(analysis.computing(Phase::kDenoise),
              seconds(96, 64, 64, 0) + 2 * seconds(512, 256, 1024, 0) + 8 * seconds(512, 256, 1024, 7) +
                  seconds(32, 32, 32, 0),
              1e-12);
  EXPECT_NEAR(analysis.computing(Phase::kDecode), seconds(128, 64, 64, 0), 1e-12);
  ASSERT_EQ(analysis.collectives.size(), 1U);
  EXPECT_NEAR(analysis.collectives[0].seconds, 8 * (0.5 + 3000 / 1e6), 1e-12);
  EXPECT_EQ(analysis.collectives[0].bytes, 8 * 3000);
  EXPECT_EQ(analysis.collectives[0].step_bytes, 3000);
  ASSERT_EQ(analysis.operators.size(), 6U);
  EXPECT_EQ(analysis.operators[2].role, "blocks.*.fc1");
  EXPECT_EQ(analysis.operators[2].count, 2);
  EXPECT_EQ(analysis.operators[2].step_count, 0);
  EXPECT_EQ(analysis.operators[3].step_count, 1);
}

// The shape of a vector operator is that of its tensors, however many numbers it reads besides.
TEST(TraceAnalysis, AVectorOperatorHasTheRowsOfItsTensors) {
  const int64_t rows = 32768, width = 1152;
  const OperationEvent modulated{
      .name = "modulated_layer_norm",
      .role = {},
      .output = shape({2, rows / 2, width}),
      .inputs = {shape({2, rows / 2, width}), shape({2, width}, at::kFloat), shape({2, width}, at::kFloat)},
      .flops = 6 * rows * width,
      .bytes = 4 * rows * width + 16 * width};
  const std::vector<Work> works = works_of(modulated, 2);
  ASSERT_EQ(works.size(), 1U);
  const auto& work = std::get<VectorWork>(works[0]);
  EXPECT_EQ(shape_text(work), "32768 x 1152");
  EXPECT_EQ(work.inputs, 1);
  EXPECT_DOUBLE_EQ(work.operations_per_element, 6);
  EXPECT_DOUBLE_EQ(demand_of(work).elements, real(modulated.bytes) / 2);
}

// The weights of a norm of heads are those of one head.
TEST(TraceAnalysis, ANormOfHeadsIsTold) {
  constexpr int64_t kElements = 2 * 64 * 1152;
  const auto is_by_head = [](int64_t weights) {
    const OperationEvent norm{.name = "rms_norm",
                              .role = {},
                              .output = shape({2, 64, 1152}),
                              .inputs = {shape({2, 64, 1152}), shape({weights})},
                              .flops = 4 * kElements,
                              .bytes = 4 * kElements + 2 * weights};
    return std::get<VectorWork>(works_of(norm, 2).at(0)).is_by_head;
  };
  EXPECT_TRUE(is_by_head(72));
  EXPECT_FALSE(is_by_head(1152));
}

// Tokens pick their rows from a table of embeddings, which may be larger than all else.
TEST(TraceAnalysis, WhatPicksRowsReadsTheseAlone) {
  const at::Tensor table = at::ones({1000, 64}), rows = at::zeros({4}, at::kLong);
  comm::World world;
  RankTrace trace;
  {
    Recorder recorder(world, trace);
    table.index_select(0, rows);
  }
  ASSERT_EQ(trace.events.size(), 1U);
  const auto& picked = std::get<OperationEvent>(trace.events[0].what);
  EXPECT_EQ(picked.bytes, 2 * 4 * 64 * 4 + 4 * 8);
  EXPECT_EQ(demand_of(works_of(picked, 4).at(0)).elements, 2 * 4 * 64 + 4 * 2);
}

TEST(TraceAnalysis, RunsInTheNearestDtype) {
  Machine machine = tx8();
  EXPECT_EQ(nearest_dtype(machine, "fp32"), "bf16");
  machine.gemm_rates = {{"fp16", 1e12}, {"fp32", 1e12}};
  EXPECT_EQ(nearest_dtype(machine, "bf16"), "fp16");
  EXPECT_EQ(nearest_dtype(machine, "fp32"), "fp32");
  machine.gemm_rates = {{"fp32", 1e12}};
  EXPECT_EQ(nearest_dtype(machine, "fp16"), "fp32");
}

// Published: seconds of 30 steps of the transformer on one A100. What is estimated is a bound of what is
// possible, so it is below what was measured, and above what the products take.
TEST_F(StditXl, IsFasterThanWasMeasured) {
  struct Case {
    int64_t frames, height, width;
    double seconds;
  };
  const Machine machine = read_machine(golden_folder("../../machines/a100.json"));
  for (const Case& c : {Case{204, 360, 640, 99.00}, Case{408, 360, 640, 202.3}, Case{51, 720, 1280, 104.24},
                        Case{102, 720, 1280, 206.92}}) {
    Trace trace{.model = "m", .settings = {}, .steps = 30, .traced_steps = 1, .ranks = {}};
    trace.ranks.push_back(trace_rank(settings(c.frames, c.height, c.width), model_, whole(), 0, 1));
    double products = 0;
    for (const FlopsRow& row : flops_rows(trace.ranks[0])) {
      if (row.phase == Phase::kDenoise) products += real(row.products.run);
    }
    OperationCosts costs(machine);
    const double estimated =
        run_costs(schedule_of(trace, costs, "trace"), 30, costs_on(costs.machine(), {}, 1), "trace")
            .phase_seconds(Phase::kDenoise);
    EXPECT_LT(estimated, c.seconds) << c.frames << " frames of " << c.height;
    EXPECT_GT(estimated, 30 * products / machine.gemm_rate("bf16"));
  }
}

// Published: the same on eight A100 with Ulysses, without DSP.
TEST_F(StditXl, IsFasterThanWasMeasuredOnEight) {
  struct Case {
    int64_t frames, height, width;
    double seconds;
  };
  const Machine machine = read_machine(golden_folder("../../machines/a100.json"));
  for (const Case& c : {Case{204, 360, 640, 13.76}, Case{51, 720, 1280, 25.26}}) {
    const engine::Settings all = settings(c.frames, c.height, c.width);
    parallel::ParallelOptions options = parallel::degrees(1, false, 1, 1, 8, 1);
    options.dynamic_sequence_parallel = false;
    const parallel::Layout layout =
        parallel::resolve_layout(options, engine::workload(all, model_), std::nullopt);
    Trace trace{.model = "m", .settings = {}, .world_size = 8, .steps = 30, .traced_steps = 1, .ranks = {}};
    for (int64_t rank = 0; rank < 8; ++rank) trace.ranks.push_back(trace_rank(all, model_, layout, rank, 1));
    OperationCosts costs(machine);
    const RunCosts run =
        run_costs(schedule_of(trace, costs, "trace"), 30,
                  costs_on(machine, {find_link(machine, std::nullopt)}, trace.world_size), "trace");
    EXPECT_LT(run.phase_seconds(Phase::kDenoise), c.seconds) << c.frames << " frames of " << c.height;
    EXPECT_GT(run.ranks[0].run.waiting, 0);
  }
}

}  // namespace
}  // namespace tessera::plan
