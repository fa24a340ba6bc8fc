// Tests that a trace, which is made from shapes alone, equals what every rank of a real run does, operation
// by operation and message by message, for whole pipelines of every family.
#include "plan/trace_model.h"

#include <gtest/gtest.h>

#include <chrono>

#include "core/error.h"
#include "engine/engine.h"
#include "plan/recorder.h"
#include "plan/views.h"
#include "tests/support/degrees.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_open_sora.h"
#include "tests/support/tiny_pipeline.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"

namespace tessera::plan {
namespace {

using parallel::degrees;

constexpr int64_t kFewBytes = 16;  // an answer, or a count

struct Subject {
  std::string name;
  const engine::Model& (*model)();
  engine::Request (*request)();
  at::ScalarType dtype;
  int64_t refusals;  // of methods() or of products(): those that its heads, blocks and rows do not allow
};

const engine::Model& tiny_sdxl() {
  static const engine::Model model = engine::read_model(golden_folder("tiny-sdxl"));
  return model;
}

engine::Request image_request(int64_t height, int64_t width) {
  engine::Request request = engine::tiny_request(height, width, 1, {"a cat", "two red squares"});
  request.resolution_binning = std::nullopt;
  request.num_inference_steps = 3;
  return request;
}

engine::Request video_request() {
  engine::Request request;
  request.prompts = {"a cat"};
  request.height = 48;
  request.width = 40;
  request.video.num_frames = 20;
  request.num_inference_steps = 2;
  request.seed = 1;
  return request;
}

engine::Request wide_request() {
  return image_request(160, 96);
}

engine::Request exact_request() {  // PixArt would change the size
  engine::Request request = wide_request();
  request.resolution_binning = false;
  return request;
}

// Texts of this model are filled up to such a length, at which they take more than the weights of a layer.
engine::Request wide_klein_request() {
  engine::Request request = wide_request();
  request.max_sequence_length = 160;
  return request;
}

engine::Request edit_request() {
  engine::Request request = wide_klein_request();
  for (const char* name : {"70x101.png", "64x80.png"})
    request.images.push_back(golden_folder("tiny-flux2-klein") / "golden" / name);
  return request;
}

std::vector<Subject> subjects() {
  return {{"PixArt", engine::tiny, exact_request, at::kFloat, 0},
          {"PixArtInBf16", engine::tiny, exact_request, at::kBFloat16, 0},
          {"StableDiffusion", engine::tiny_sd, wide_request, at::kFloat, 1},
          {"StableDiffusionXL", tiny_sdxl, wide_request, at::kFloat, 1},
          {"StableDiffusionXLInBf16", tiny_sdxl, wide_request, at::kBFloat16, 1},
          {"ZImage", engine::tiny_z_image, wide_request, at::kFloat, 0},
          {"Flux2Klein", engine::tiny_klein, wide_klein_request, at::kFloat, 0},
          {"Flux2KleinInBf16", engine::tiny_klein, edit_request, at::kBFloat16, 0},
          {"Flux2Dev", engine::tiny_dev, wide_klein_request, at::kFloat, 1},
          {"OpenSora", engine::tiny_video, video_request, at::kFloat, 1},
          {"OpenSoraInBf16", engine::tiny_video, video_request, at::kBFloat16, 1},
          {"OpenSora1_1", engine::tiny_video_1_1, video_request, at::kFloat, 1}};
}

std::vector<Subject> subjects_of_products() {
  return {{"PixArt", engine::tiny, exact_request, at::kFloat, 3},
          {"StableDiffusionXL", tiny_sdxl, wide_request, at::kFloat, 5},
          {"StableDiffusionXLInBf16", tiny_sdxl, wide_request, at::kBFloat16, 5},
          {"ZImageInBf16", engine::tiny_z_image, wide_request, at::kBFloat16, 0},
          {"Flux2KleinInBf16", engine::tiny_klein, edit_request, at::kBFloat16, 0},
          {"OpenSora", engine::tiny_video, video_request, at::kFloat, 3},
          {"OpenSora1_1", engine::tiny_video_1_1, video_request, at::kFloat, 3}};
}

std::vector<Subject> subjects_of_unequal_ranks() {
  return {{"PixArt", engine::tiny, exact_request, at::kFloat, 0},
          {"StableDiffusionXL", tiny_sdxl, wide_request, at::kFloat, 1},
          {"ZImageInBf16", engine::tiny_z_image, wide_request, at::kBFloat16, 0},
          {"Flux2KleinInBf16", engine::tiny_klein, edit_request, at::kBFloat16, 0},
          {"OpenSora", engine::tiny_video, video_request, at::kFloat, 1}};
}

// Records a rank of a real run, whose engine keeps each part until the end.
RankTrace record_run(const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, comm::World world) {
  RankTrace trace{.rank = world.rank(), .events = {}};
  Recorder recorder(world, trace, /*is_timed=*/true);
  recorder.begin_loading(Phase::kEncode);
  engine::Observer observer;
  observer.started = [&](engine::Phase phase) {
    switch (phase) {
      case engine::Phase::kLoadTextEncoder:
      case engine::Phase::kLoadVideoEncoder:
        return recorder.begin_loading(Phase::kEncode);
      case engine::Phase::kLoadDenoiser:
        return recorder.begin_loading(Phase::kDenoise);
      case engine::Phase::kLoadDecoder:
        return recorder.begin_loading(Phase::kDecode);
      case engine::Phase::kEncode:
      case engine::Phase::kEncodeFrames:
      case engine::Phase::kDenoise:
      case engine::Phase::kDecode:
        return recorder.end_loading();
      default:
        return;
    }
  };
  observer.progressed = [&](engine::Phase phase, int64_t done, int64_t /*total*/) {
    if (phase == engine::Phase::kDenoise) recorder.begin_step(done);
  };
  engine::Engine(model, /*budget=*/0, world).run(settings, layout, observer);
  return trace;
}

std::string shape_text(const TensorShape& shape) {
  return fmt::format("[{}] {}", fmt::join(shape.sizes, ", "), engine::dtype_name(shape.dtype));
}

struct Text {
  std::string operator()(const OperationEvent& event) const {
    std::string inputs;
    for (const TensorShape& input : event.inputs) inputs += " " + shape_text(input);
    // That of attention, which has no weights, is known of shapes alone.
    const std::string role = is_attention(event.name) ? "" : event.role;
    return fmt::format("block {} {} '{}' {} of{}, {} FLOPs, {} bytes", event.block, event.name, role,
                       shape_text(event.output), inputs, event.flops, event.bytes);
  }
  std::string operator()(const CollectiveEvent& event) const {
    std::string text = fmt::format("{} {} {} bytes {} among {}", event.axis, event.name, event.bytes,
                                   engine::dtype_name(event.dtype), fmt::join(event.ranks, " "));
    for (const Transfer& sent : event.sends) text += fmt::format(" to {}: {}", sent.peer, sent.bytes);
    for (const Transfer& got : event.receives) text += fmt::format(" from {}: {}", got.peer, got.bytes);
    return text;
  }
  std::string operator()(const WaitEvent&) const { return "wait"; }
};

// Whether the event is of what a run does besides a trace: ranks ask each other whether to go on, and look
// for numbers that overflow.
bool is_beside(const Event& event, int64_t steps) {
  if (const auto* collective = std::get_if<CollectiveEvent>(&event.what))
    return collective->bytes < kFewBytes;
  const auto* operation = std::get_if<OperationEvent>(&event.what);
  if (!operation) return true;
  const std::string& name = operation->name;
  const bool is_of_a_check = name == "aten::isfinite";
  return name.starts_with("aten::") && (is_of_a_check || operation->output.bytes() < kFewBytes ||
                                        (event.phase == Phase::kDenoise && event.step == steps));
}

bool is_call(const Event& event) {
  const auto* operation = std::get_if<OperationEvent>(&event.what);
  return operation && operation->name.starts_with("aten::");
}

std::vector<std::string> texts_of(const RankTrace& trace, int64_t steps, bool has_calls) {
  std::vector<std::string> texts;
  for (const Event& event : trace.events) {
    if (is_beside(event, steps) || (!has_calls && is_call(event))) continue;
    texts.push_back(
        fmt::format("{} {}: {}", phase_name(event.phase), event.step, std::visit(Text{}, event.what)));
  }
  return texts;
}

parallel::ParallelOptions with_warmup(parallel::ParallelOptions options) {
  options.warmup_steps = 1;
  return options;
}

parallel::ParallelOptions pipefusion(bool cfg, int64_t stages, int64_t ulysses) {
  parallel::ParallelOptions options = degrees(1, cfg, stages, 1, ulysses, 1);
  options.num_pipeline_patch = 2;
  return with_warmup(options);
}

parallel::ParallelOptions displaced(bool cfg, int64_t degree) {
  parallel::ParallelOptions options = degrees(1, cfg, 1, 1, 1, 1);
  options.displaced_patch_degree = degree;
  return with_warmup(options);
}

parallel::ParallelOptions tensor_2d(bool cfg, int64_t degree) {
  parallel::ParallelOptions options = degrees(1, cfg, 1, 1, 1, degree);
  options.split_scheme = parallel::SplitScheme::k2d;
  return options;
}

std::vector<parallel::ParallelOptions> methods() {
  return {degrees(1, false, 1, 1, 1, 1),
          degrees(1, true, 1, 1, 1, 1),
          degrees(2, false, 1, 1, 1, 1),
          degrees(1, false, 1, 2, 1, 1),
          degrees(1, false, 1, 1, 2, 1),
          degrees(1, false, 1, 1, 1, 2),
          degrees(1, false, 1, 3, 1, 1),
          degrees(1, false, 1, 1, 1, 1, 2),
          degrees(1, false, 1, 1, 1, 1, 3),
          pipefusion(false, 2, 1),
          displaced(false, 2),
          displaced(false, 3)};
}

std::vector<parallel::ParallelOptions> products() {
  return {degrees(2, true, 1, 1, 1, 1),
          degrees(1, true, 1, 2, 1, 1),
          degrees(1, true, 1, 1, 2, 1),
          degrees(1, true, 1, 1, 1, 2),
          degrees(1, false, 1, 2, 2, 1),
          degrees(1, false, 1, 1, 2, 2),
          degrees(1, false, 1, 2, 1, 2),
          degrees(1, false, 1, 1, 1, 4),
          degrees(1, false, 1, 4, 1, 1),
          degrees(1, false, 1, 1, 2, 1, 2),
          degrees(1, false, 1, 2, 1, 1, 2),
          degrees(2, false, 1, 1, 2, 1),
          tensor_2d(false, 4),
          pipefusion(true, 2, 1),
          pipefusion(false, 2, 2),
          displaced(true, 2),
          displaced(false, 4)};
}

parallel::ParallelOptions unequal(std::vector<double> shares, parallel::ParallelOptions options) {
  options.rank_shares = std::move(shares);
  return options;
}

std::vector<parallel::ParallelOptions> unequal_layouts() {
  return {
      unequal({3, 2}, degrees(1, false, 1, 1, 2, 1)), unequal({1, 5}, degrees(1, false, 1, 2, 1, 1)),
      unequal({3, 2}, degrees(1, false, 1, 1, 1, 2)), unequal({1, 5}, degrees(1, false, 1, 1, 1, 1, 2)),
      unequal({1, 5}, degrees(2, false, 1, 1, 1, 1)), unequal({1, 5}, pipefusion(false, 2, 1)),
      unequal({3, 1}, displaced(false, 2)),           unequal({1, 1, 1, 7}, degrees(1, true, 1, 1, 2, 1))};
}

std::string what_at(const RankTrace& trace, Phase phase) {
  for (const MemoryRow& row : memory_rows(trace)) {
    if (row.phase == phase) return fmt::format("{}: {}", row.event, row.what);
  }
  return {};
}

// What tensors take between events at most.
int64_t live_bytes(const RankTrace& trace, Phase phase) {
  int64_t most = 0;
  for (const Event& event : trace.events) {
    if (event.phase == phase) most = std::max(most, event.live_bytes);
  }
  return most;
}

// The most that tensors of a real run take besides weights that stay for a phase.
int64_t peak_beside_weights(const RankTrace& real, Phase phase) {
  return real.peak_bytes(phase) - real.weights_bytes[static_cast<size_t>(phase)];
}

// oneDNN's bf16 kernels take room for rearranged inputs, some KiB, which a trace does not have and which only
// models as small as these show; so do, up to 16 MiB, convolutions with strides, which the encoder of
// pictures has. So a peak may be lower, and what lives between operations is compared.
void expect_near_live_bytes(const RankTrace& traced, const RankTrace& real) {
  for (const Phase phase : {Phase::kEncode, Phase::kDenoise, Phase::kDecode}) {
    const int64_t weights = traced.weights_bytes.at(static_cast<size_t>(phase));
    const auto expected = static_cast<double>(weights + live_bytes(real, phase));
    const auto found = static_cast<double>(weights + live_bytes(traced, phase));
    EXPECT_NEAR(found / expected, 1, 0.05) << phase_name(phase) << ", rank " << real.rank;
    EXPECT_LE(static_cast<double>(traced.peak_bytes(phase)),
              1.05 * static_cast<double>(weights + peak_beside_weights(real, phase)))
        << phase_name(phase) << ", rank " << real.rank;
  }
}

// Weights of a real run are packed for the processor, so the traced ones count for both. Blocks of a text
// encoder are packed where they are read, among the tensors that are compared: of models as small as these,
// whose widths are rounded up, packed weights are up to a third larger.
void expect_near_peaks(const RankTrace& traced, const RankTrace& real) {
  for (const Phase phase : {Phase::kEncode, Phase::kDenoise, Phase::kDecode}) {
    const auto weights = static_cast<double>(traced.weights_bytes.at(static_cast<size_t>(phase)));
    const auto expected = weights + static_cast<double>(peak_beside_weights(real, phase));
    EXPECT_NEAR(static_cast<double>(traced.peak_bytes(phase)) / expected, 1,
                phase == Phase::kEncode ? 0.1 : 0.05)
        << phase_name(phase) << ", rank " << real.rank << ": " << traced.peak_bytes(phase) << " at '"
        << what_at(traced, phase) << "', " << real.peak_bytes(phase) << " at '" << what_at(real, phase)
        << "', weights " << weights;
  }
}

// As a run does that ends with its pictures: a T5 holds one block at a time.
TEST(Trace, ReadsBlocksOfATextEncoderWhereTheyAreNeeded) {
  engine::Request request = engine::tiny_request(64, 64, 1);
  request.dtype = at::kFloat;
  const engine::Settings settings = engine::resolve(request, engine::tiny());
  const parallel::Layout layout =
      parallel::resolve_layout({}, engine::workload(settings, engine::tiny()), std::nullopt);
  const RankTrace trace = trace_rank(settings, engine::tiny(), layout, 0, 1);
  constexpr int64_t kWidth = 12, kInner = 20, kBlock = 4 * kWidth * kWidth + 3 * kWidth * kInner + 2 * kWidth;
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  const int64_t weights = trace.weights_bytes.at(static_cast<size_t>(Phase::kEncode));
  EXPECT_LT(weights, kBytes * kBlock);
  EXPECT_GT(trace.peak_bytes(Phase::kEncode), weights + kBytes * kBlock);
}

class Traces : public ::testing::TestWithParam<Subject> {};

void expect_equal_traces(const engine::Model& model, const engine::Settings& settings,
                         const parallel::ParallelOptions& options) {
  const int64_t steps = engine::make_sampler(settings, model)->steps();
  const parallel::Layout layout =
      parallel::resolve_layout(options, engine::workload(settings, model), std::nullopt);
  std::vector<RankTrace> real(static_cast<size_t>(options.degrees()));
  comm::run_ranks_as_threads(
      options.degrees(),
      [&](const comm::World& world) {
        RankTrace trace = record_run(settings, model, layout, world);
        real[static_cast<size_t>(trace.rank)] = std::move(trace);
      },
      comm::Wire::kShared);
  // Of stale moments of groups, the choice among them has no kernel for meta tensors.
  const bool has_calls = options.displaced_patch_degree == 1;
  for (const RankTrace& expected : real) {
    const RankTrace traced = trace_rank(settings, model, layout, expected.rank, settings.steps);
    const std::vector<std::string> a = texts_of(traced, steps, has_calls),
                                   b = texts_of(expected, steps, has_calls);
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      ASSERT_EQ(a[i], b[i]) << "rank " << expected.rank << ", event " << i;
    EXPECT_EQ(a.size(), b.size());
    (settings.request.dtype == at::kFloat ? expect_near_peaks : expect_near_live_bytes)(traced, expected);
  }
}

void expect_equal_traces(const Subject& subject, const std::vector<parallel::ParallelOptions>& wishes) {
  const engine::Model& model = subject.model();
  engine::Request request = subject.request();
  request.dtype = subject.dtype;
  const engine::Settings settings = engine::resolve(request, model);
  int64_t refusals = 0;
  for (const parallel::ParallelOptions& options : wishes) {
    SCOPED_TRACE(parallel::degrees_text(options) + " degrees");
    try {
      expect_equal_traces(model, settings, options);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
      ++refusals;
    }
  }
  EXPECT_EQ(refusals, subject.refusals);
}

TEST_P(Traces, EqualARealRunOnEveryRank) {
  expect_equal_traces(GetParam(), methods());
}

class TracesOfProducts : public Traces {};

TEST_P(TracesOfProducts, EqualARealRunOnEveryRank) {
  expect_equal_traces(GetParam(), products());
}

class TracesOfUnequalRanks : public Traces {};

TEST_P(TracesOfUnequalRanks, EqualARealRunOnEveryRank) {
  expect_equal_traces(GetParam(), unequal_layouts());
}

// The time that a run takes holds the times of its operations, one after the other.
TEST(MeasuredTraces, HaveTheTimeOfEachEventOnEveryRank) {
  const engine::Model& model = engine::tiny();
  const engine::Settings settings = engine::resolve(subjects()[0].request(), model);
  const parallel::Layout layout = parallel::resolve_layout(degrees(1, false, 1, 1, 2, 1),
                                                           engine::workload(settings, model), std::nullopt);
  std::vector<RankTrace> real(2);
  std::vector<double> seconds(2);
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        const auto start = std::chrono::steady_clock::now();
        RankTrace trace = record_run(settings, model, layout, world);
        const auto rank = static_cast<size_t>(world.rank());
        seconds[rank] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        real[rank] = std::move(trace);
      },
      comm::Wire::kShared);
  for (size_t rank = 0; rank < 2; ++rank) {
    double before = 0, sum = 0;
    for (const Event& event : real[rank].events) {
      ASSERT_TRUE(event.time.has_value());
      EXPECT_LE(0, event.time->begin);
      EXPECT_LE(event.time->begin, event.time->end);
      EXPECT_LE(event.time->end, seconds[rank]);
      EXPECT_LE(before, event.time->begin);
      before = event.time->begin;
      const auto* operation = std::get_if<OperationEvent>(&event.what);
      if (operation && operation->name == "linear") sum += event.time->end - event.time->begin;
    }
    EXPECT_GT(sum, 0);
    EXPECT_LT(sum, seconds[rank]);
  }
  for (const Event& event : trace_rank(settings, model, layout, 0, 1).events)
    EXPECT_FALSE(event.time.has_value());
}

bool is_of_prompt(const std::string& role) {
  return role.ends_with("attn2.to_kv") || role.ends_with("cross_attn.kv_linear") ||
         role == "context_embedder" || role.starts_with("cap_embedder.") ||
         role.starts_with("context_refiner.");
}

// What takes the prompt alone is computed once, however many steps a run has.
TEST(TracedSteps, DoNotHoldWhatARunDoesOnce) {
  for (const Subject& subject : subjects()) {
    const engine::Settings settings = engine::resolve(subject.request(), subject.model());
    const parallel::Layout layout = parallel::resolve_layout(
        degrees(1, false, 1, 1, 1, 1), engine::workload(settings, subject.model()), std::nullopt);
    int64_t once = 0, in_steps = 0;
    for (const Event& event : trace_rank(settings, subject.model(), layout, 0, 2).events) {
      const auto* operation = std::get_if<OperationEvent>(&event.what);
      if (event.phase != Phase::kDenoise || !operation) continue;
      const std::string& role = operation->role;
      EXPECT_EQ(event.step == kBeforeSteps, is_of_prompt(role) || event.step < 0)
          << subject.name << " " << role;
      once += event.step == kBeforeSteps && is_of_prompt(role) ? 1 : 0;
      in_steps += event.step >= 0 && event.step < 2 ? 1 : 0;
    }
    EXPECT_GT(once, 0) << subject.name;
    EXPECT_GT(in_steps, 0) << subject.name;
  }
}

TEST(TracedSteps, StandForThoseOfARun) {
  const auto times = [](int64_t step, int64_t steps, Phase phase = Phase::kDenoise) {
    const Event event{.phase = phase, .step = step, .what = WaitEvent{}};
    return times_in_run(event, 3, steps);
  };
  EXPECT_EQ(times(kBeforeSteps, 20), 1);
  EXPECT_EQ(times(0, 20), 1);
  EXPECT_EQ(times(1, 20), 18);
  EXPECT_EQ(times(2, 20), 1);  // the last of the run
  EXPECT_EQ(times(3, 20), 1);  // after the loop
  EXPECT_EQ(times(0, 20, Phase::kDecode), 1);
  for (const int64_t step : {kBeforeSteps, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}})
    EXPECT_EQ(times(step, 3), 1) << step;
}

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Families, Traces, ::testing::ValuesIn(subjects()), kName);
INSTANTIATE_TEST_SUITE_P(Families, TracesOfProducts, ::testing::ValuesIn(subjects_of_products()), kName);
INSTANTIATE_TEST_SUITE_P(Families, TracesOfUnequalRanks, ::testing::ValuesIn(subjects_of_unequal_ranks()),
                         kName);

}  // namespace
}  // namespace tessera::plan
