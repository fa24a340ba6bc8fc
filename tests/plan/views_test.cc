// Tests the tables of a trace against closed forms and published totals, and the reader of traces.
#include "plan/views.h"

#include <gtest/gtest.h>

#include <map>

#include "core/error.h"
#include "engine/request.h"
#include "plan/trace_model.h"
#include "tests/plan/stdit_xl.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"

namespace tessera::plan {
namespace {

// Sends of Bruck's algorithm, counted by running it: in round k a rank sends the blocks whose index has bit
// k.
TEST(Volumes, OfBruck) {
  const std::vector<std::pair<int64_t, int64_t>> expected = {{2, 1}, {3, 2},  {4, 4},
                                                             {6, 7}, {8, 12}, {16, 32}};
  for (const auto& [ranks, blocks] : expected) EXPECT_EQ(bruck_blocks(ranks), blocks) << ranks << " ranks";
  // ranks * log2(ranks) / 2 for powers of two
  for (int64_t power = 1; power < 12; ++power)
    EXPECT_EQ(bruck_blocks(int64_t{1} << power), power * (int64_t{1} << power) / 2);
}

// The published sizes, with the products of a step that were counted in graphs where each sample attends to
// its own text.
struct PublishedStep {
  int64_t frames, height, width;
  double products;  // TFLOP
};

// Those of two samples of 300 tokens of text each.
TEST_F(StditXl, HasThePublishedFlopsOfAStep) {
  for (const PublishedStep& c :
       {PublishedStep{204, 360, 640, 252.431}, PublishedStep{51, 720, 1280, 283.665}}) {
    const RankTrace trace = trace_rank(settings(c.frames, c.height, c.width), model_, whole(), 0, 1);
    int64_t flops = 0;
    for (const FlopsRow& row : flops_rows(trace)) {
      if (row.phase != Phase::kDenoise) continue;
      flops += row.products.run - row.convolutions.run;
    }
    EXPECT_NEAR(static_cast<double>(flops) / 1e12, c.products, 0.001) << c.frames << " frames";
  }
}

// Of two samples of 51 frames of 240 x 426: 15 latent frames of 405 tokens, and 300 tokens of text.
TEST_F(StditXl, HasThePublishedSizesOfAPair) {
  const RankTrace trace = trace_rank(settings(51, 240, 426), model_, whole(), 0, 1);
  std::map<std::string, int64_t> sizes;
  for (const Size& size : pair_sizes(trace)) sizes[size.name] = size.value;
  const std::map<std::string, int64_t> expected = {
      {"B_spt", 30},     {"S_Q_spt", 405},  {"S_KV_spt", 405}, {"B_tmp", 810},    {"S_Q_tmp", 15},
      {"S_KV_tmp", 15},  {"B_cro", 2},      {"S_Q_cro", 6075}, {"S_KV_cro", 300}, {"N_A", 16},
      {"H_A", 72},       {"L", 28},         {"Q", 16},         {"D_QKV", 1152},   {"H_QKV", 3456},
      {"D_O_spt", 1152}, {"H_O_spt", 1152}, {"D_O_tmp", 1152}, {"H_O_tmp", 1152}, {"D_O_cro", 1152},
      {"H_O_cro", 1152}, {"D_FU", 1152},    {"H_FU", 4608},    {"D_FD", 4608},    {"H_FD", 1152}};
  EXPECT_EQ(sizes, expected);
  // The reciprocal roots by which the published analysis tells blocks apart: 4 norms in each half of a pair,
  // and the last.
  int64_t norms = 0;
  for (const OperationRow& row : operation_rows(trace)) {
    if (row.phase == Phase::kDenoise && row.name.ends_with("norm")) norms += row.count.run;
  }
  EXPECT_EQ(norms, 28 * 8 + 1);
}

// 28 pairs of blocks, of 8 norms each: none of them is part of a block of the other kind, or of no block.
TEST_F(StditXl, CountsANormWithItsBlock) {
  const RankTrace trace = trace_rank(settings(51, 240, 426), model_, whole(), 0, 1);
  const std::vector<std::string> parts = parts_of(trace), roles = roles_of(trace);
  std::map<std::string, int64_t> norms, attentions;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const auto* operation = std::get_if<OperationEvent>(&trace.events[i].what);
    if (trace.events[i].phase != Phase::kDenoise || operation == nullptr) continue;
    if (operation->name.ends_with("layer_norm")) ++norms[parts[i]];
    if (is_attention(operation->name)) ++attentions[roles[i]];
  }
  // Half of the norms are those of queries and keys, which have roles.
  EXPECT_EQ(norms, (std::map<std::string, int64_t>{
                       {"final_layer", 1}, {"spatial_blocks", 28 * 2}, {"temporal_blocks", 28 * 2}}));
  // Two samples of texts of their own.
  EXPECT_EQ(attentions, (std::map<std::string, int64_t>{{"spatial_blocks.*.attn.attention", 28},
                                                        {"spatial_blocks.*.cross_attn.attention", 28 * 2},
                                                        {"temporal_blocks.*.attn.attention", 28},
                                                        {"temporal_blocks.*.cross_attn.attention", 28 * 2}}));
}

// Tensor parallelism sums the output of a self-attention, a cross-attention and a feed-forward in each half
// of 28 pairs. A published analysis counts 80.124 and 78.382 GB that each of 16 devices sends for that in a
// step.
TEST_F(StditXl, SendsThePublishedBytesOfTensorParallelism) {
  struct Case {
    int64_t frames, height, width;
    double bytes;
  };
  for (const Case& c : {Case{204, 360, 640, 80.124e9}, Case{51, 720, 1280, 78.382e9}}) {
    const engine::Settings all = settings(c.frames, c.height, c.width);
    const parallel::Layout layout = parallel::resolve_layout(parallel::degrees(1, false, 1, 1, 1, 16),
                                                             engine::workload(all, model_), std::nullopt);
    double sent = 0;
    for (const CollectiveRow& row : collective_rows(trace_rank(all, model_, layout, 0, 1))) {
      if (row.phase != Phase::kDenoise || row.axis != "tp") continue;
      sent += static_cast<double>(row.sent.step);
    }
    EXPECT_NEAR(sent / c.bytes, 1, 0.001) << c.frames << " frames";
  }
}

TEST(TraceFile, IsReadAsItWasWritten) {
  const engine::Model model = engine::read_model(golden_folder("tiny-open-sora"));
  engine::Request request;
  request.prompts = {"a cat"};
  request.video.num_frames = 20;
  request.height = 48;
  request.width = 40;
  request.seed = 1;
  const engine::Settings settings = engine::resolve(request, model);
  Trace trace{.model = "OpenSoraPipeline", .settings = {{"height", 48}}, .ranks = {}};
  trace.ranks.push_back(trace_rank(settings, model, parallel::Layout{.stage_blocks = {2}}, 0, 1));
  const std::string text = write_trace(trace);
  EXPECT_EQ(read_trace(text, "file"), trace);
  Trace timed = trace;
  timed.ranks[0].events[0].time = TimeSpan{0.25, 1.5};
  EXPECT_EQ(read_trace(write_trace(timed), "file"), timed);
  const auto refuses = [](const std::string& wrong, const std::string& message) {
    try {
      read_trace(wrong, "file");
      FAIL() << "was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refuses(text.substr(0, text.size() / 2), "file");
  refuses("{}", "is no trace; `tessera trace` makes a trace, and so does `tessera generate` with record");
  refuses(R"({"traceEvents": []})",
          "is a timeline, which shows no operations; `tessera trace` makes a trace");
  timed.ranks[0].events[0].time = TimeSpan{1.5, 0.25};
  refuses(write_trace(timed), "'end'");
  std::string other = text;
  other.replace(other.find("\"tessera_trace\":1"), 17, "\"tessera_trace\":7");
  refuses(other, "version 7");
  other = text;
  other.replace(other.find("\"flops\":"), 8, "\"flops\":-1");
  refuses(other, "flops");
  other = text;
  other.replace(other.find("\"step\":-1"), 9, "\"step\":-2");
  refuses(other, "step");
}

}  // namespace
}  // namespace tessera::plan
