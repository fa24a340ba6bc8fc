// Timelines of predicted and of recorded ranks on a page, worked out by hand.
#include "plan/timeline_plot.h"

#include <gtest/gtest.h>

#include "tests/plan/machines.h"

namespace tessera::plan {
namespace {

// A product of a whole tile's work; the machine of machines.h takes far below a second for it.
Event timed_product(int64_t step, double begin, double end) {
  const TensorShape square{.sizes = {64, 64}, .dtype = at::kBFloat16};
  return {.step = step,
          .time = TimeSpan{begin, end},
          .what = OperationEvent{.name = "linear",
                                 .role = "ff",
                                 .output = square,
                                 .inputs = {square, square},
                                 .flops = 2 * 64 * 64 * 64,
                                 .bytes = 3 * square.bytes()}};
}

Event timed_message(int64_t step, int64_t own, double at) {
  return {.step = step,
          .time = TimeSpan{at, at},
          .what = CollectiveEvent{.axis = "ring",
                                  .name = "send_receive",
                                  .number = step,
                                  .bytes = 64,
                                  .ranks = {0, 1},
                                  .sends = {{1 - own, 64}},
                                  .receives = {{1 - own, 64}}}};
}

Event end_of_message(int64_t step, double begin, double end) {
  return {.step = step, .time = TimeSpan{begin, end}, .what = WaitEvent{step}};
}

// Two steps of 4 s and 1 s, which begin 10 s after the recording. Rank 0 waits in the first one.
Trace recording_of_two() {
  Trace trace{.model = "toy",
              .settings = Json::object(),
              .world_size = 2,
              .steps = 2,
              .traced_steps = 2,
              .ranks = {}};
  trace.ranks = {{.rank = 0,
                  .events = {timed_product(kBeforeSteps, 8, 9), timed_product(0, 10, 12),
                             timed_message(0, 0, 12), end_of_message(0, 12, 13), timed_product(0, 13, 14),
                             timed_product(0, 13, 14), timed_product(1, 14, 15)}},
                 {.rank = 1,
                  .events = {timed_product(0, 10, 13), timed_message(0, 1, 13), end_of_message(0, 13, 13),
                             timed_product(0, 13, 14), timed_product(1, 14, 15)}}};
  return trace;
}

std::string timeline_of(const Trace& trace) {
  const Link link{.kind = "wire", .bandwidth = 1e9, .latency = 1e-6, .measured = {}};
  Machine machine = tx8();
  machine.links = {link};
  return timeline_html(
      cost_trace("run.json", trace, trace.steps, std::make_shared<OperationCosts>(machine), link));
}

std::vector<std::string> rects_in(const std::string& html) {
  std::vector<std::string> found;
  for (size_t at = html.find("<rect"); at != std::string::npos; at = html.find("<rect", at + 1))
    found.push_back(html.substr(at, html.find('\n', at) - at));
  return found;
}

// The lanes lie from 135.6 pixels (17 characters of 6.8, and 20) to 830; 5 s are 694.4 pixels. The predicted
// ones come first, in rows of 22.
TEST(TimelinePlot, HasARecordingBesideItsPrediction) {
  const std::string html = timeline_of(recording_of_two());
  std::vector<std::string> of_recording;
  for (const std::string& each : rects_in(html)) {
    if (each.find("y=\"46.0\"") != std::string::npos || each.find("y=\"68.0\"") != std::string::npos)
      of_recording.push_back(each);
  }
  using Texts = std::vector<std::string>;
  EXPECT_EQ(
      of_recording,
      (Texts{
          R"(<rect x="135.60" y="46.0" width="277.76" height="17.0" fill="#2f6fb3"><title>computes</title></rect>)",
          R"(<rect x="413.36" y="46.0" width="138.88" height="17.0" fill="#d9822b"><title>waits</title></rect>)",
          R"(<rect x="552.24" y="46.0" width="277.76" height="17.0" fill="#2f6fb3"><title>computes</title></rect>)",
          R"(<rect x="135.60" y="68.0" width="694.40" height="17.0" fill="#2f6fb3"><title>computes</title></rect>)"}));
  for (const char* const text :
       {">rank 1, predicted<", ">rank 0, recorded<", ">80 % computing<", ">100 % computing<", ">5.00 s<",
        "aria-label=\"Timelines of the ranks in the denoiser, as predicted and as recorded\"",
        // The ends of the recorded steps, through the lanes of the recording.
        R"(<line x1="691.1" x2="691.1" y1="44.0" y2="88.0")",
        R"(<line x1="830.0" x2="830.0" y1="44.0" y2="88.0")", "All 2 steps are drawn"})
    EXPECT_NE(html.find(text), std::string::npos) << text << '\n' << html;
  EXPECT_NE(html.find("<td>0</td><td>"), std::string::npos) << html;
  EXPECT_NE(html.find("4000"), std::string::npos) << html;
}

TEST(TimelinePlot, OfATraceHasThePredictionAlone) {
  Trace trace = recording_of_two();
  for (RankTrace& rank : trace.ranks) {
    for (Event& event : rank.events) event.time.reset();
  }
  const std::string html = timeline_of(trace);
  EXPECT_NE(html.find(">rank 1<"), std::string::npos) << html;
  EXPECT_EQ(html.find("recorded"), std::string::npos) << html;
  EXPECT_EQ(html.find("<table>"), std::string::npos) << html;
}

}  // namespace
}  // namespace tessera::plan
