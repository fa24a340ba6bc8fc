#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>

#include "core/text.h"
#include "parallel/mesh.h"
#include "plan/planner/planner.h"

namespace tessera::plan {
namespace {

using parallel::ParallelOptions;
using Unit = Table::Column::Unit;

// Layouts whose time and memory differ by no more than this are one answer.
constexpr double kTwin = 1e-3;
constexpr double kLeastWait = 0.01;  // of a step; the cause of shorter waits is left out

double share(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

std::string bytes_of(double bytes) {
  return bytes_text(static_cast<uint64_t>(bytes));
}

std::string seconds_of_plan(double seconds) {
  return seconds >= 100 ? fmt::format("{:.0f} s", seconds)
         : seconds >= 1 ? fmt::format("{:.2f} s", seconds)
                        : fmt::format("{:.1f} ms", 1e3 * seconds);
}

// The part of denoising in which its first steps exceed steady ones.
double beyond_steady(const Prediction& prediction) {
  return prediction.denoise - prediction.steps * prediction.step_seconds;
}

// The main cause of waiting, by the `seconds` of each cause, as a share of a step: "40 % for the latency of
// messages".
std::string cause_of_waiting(const Prediction& prediction, const RankTime& seconds) {
  const double others = seconds.waiting - seconds.launching - seconds.latency - seconds.sending;
  const RankTime& step = prediction.step;
  const std::array<std::tuple<double, double, std::string>, 4> causes = {
      {{seconds.launching, step.launching, "for hosts that launch kernels and messages"},
       {seconds.latency, step.latency, "for the latency of messages"},
       {seconds.sending, step.sending, fmt::format("for {} that each sends", bytes_of(prediction.sent))},
       {others, step.waiting - step.launching - step.latency - step.sending, "for each other"}}};
  const auto& [most, all, text] = *std::max_element(causes.begin(), causes.end());
  return fmt::format("{:.0f} % {}", 100 * share(all, prediction.step_seconds), text);
}

// Why a layout takes longer than the best: where most of its time is lost.
std::string loss(const Prediction& own, const Prediction& best) {
  const double computing = own.steps * own.step.computing - best.steps * best.step.computing;
  const double waiting = own.steps * own.step.waiting - best.steps * best.step.waiting;
  const double first = beyond_steady(own) - beyond_steady(best);
  const double ends = own.encode + own.decode - best.encode - best.decode;
  const double most = std::max({computing, waiting, first, ends});
  if (most == ends)
    return fmt::format("it encodes and decodes in {}, the best in {}",
                       seconds_of_plan(own.encode + own.decode), seconds_of_plan(best.encode + best.decode));
  if (most == first)
    return fmt::format("a steady step takes {}, but its first steps use nothing of earlier ones: they add {}",
                       seconds_of_plan(own.step_seconds), seconds_of_plan(beyond_steady(own)));
  if (most == waiting) {
    const RankTime more{.waiting = own.step.waiting - best.step.waiting,
                        .launching = own.step.launching - best.step.launching,
                        .latency = own.step.latency - best.step.latency,
                        .sending = own.step.sending - best.step.sending};
    return fmt::format("its ranks wait {:.0f} % of a step, {}",
                       100 * share(own.step.waiting, own.step_seconds), cause_of_waiting(own, more));
  }
  const std::string uneven =
      own.imbalance > 1.05 ? fmt::format(", {:.2f} times the mean of all", own.imbalance) : "";
  return fmt::format("its longest rank computes {} a step{}, where the best computes {}",
                     seconds_of_plan(own.step.computing), uneven, seconds_of_plan(best.step.computing));
}

bool are_twins(const PlannedLayout& a, const PlannedLayout& b) {
  const auto are_near = [](double x, double y) { return std::abs(x - y) <= kTwin * std::max(x, y); };
  return a.wish.degrees() == b.wish.degrees() && a.prediction.is_exact == b.prediction.is_exact &&
         are_near(a.prediction.seconds, b.prediction.seconds) &&
         are_near(static_cast<double>(a.prediction.most_bytes()),
                  static_cast<double>(b.prediction.most_bytes()));
}

}  // namespace

std::string basis_of(const Machine& machine) {
  const auto found = machine.text.find("calibration");
  if (found == machine.text.end()) return "the rates of a data sheet, which kernels do not reach";
  const auto rows = found->find("rows");
  if (rows != found->end())
    return fmt::format("a fit to {}", counted(static_cast<int64_t>(rows->size()), "measured run"));
  const auto timed = found->find("operations"), all = found->find("all_operations");
  if (all == found->end() || timed == found->end() || *timed >= *all) return "measurements of the machine";
  return fmt::format("poor measurements of the machine, in which {} of {} operations had time", timed->dump(),
                     all->dump());
}

OrderedJson options_json(const PlannedLayout& planned) {
  const ParallelOptions& wish = planned.wish;
  OrderedJson options = OrderedJson::object();
  if (wish.use_cfg_parallel) options["use_cfg_parallel"] = true;
  for (const parallel::Degree& degree : parallel::kDegrees) {
    if (wish.*degree.value > 1) options[degree.name] = wish.*degree.value;
  }
  if (!wish.rank_shares.empty()) {
    std::vector<std::string> shares;
    for (const double share : wish.rank_shares) shares.push_back(fmt::format("{:.4g}", share));
    options["rank_shares"] = fmt::format("{}", fmt::join(shares, ","));
  }
  if (wish.split_scheme == parallel::SplitScheme::k2d) options["split_scheme"] = "2d";
  if (wish.dynamic_sequence_parallel) options["dynamic_sequence_parallel"] = *wish.dynamic_sequence_parallel;
  if (wish.num_pipeline_patch) options["num_pipeline_patch"] = *wish.num_pipeline_patch;
  if (wish.pipeline_patch_axis)
    options["pipeline_patch_axis"] = *wish.pipeline_patch_axis == parallel::GridAxis::kRows ? "h" : "t";
  if (wish.displaced_mode) options["displaced_mode"] = parallel::mode_name(*wish.displaced_mode);
  if (wish.warmup_steps) options["warmup_steps"] = *wish.warmup_steps;
  if (wish.text_encoder_parallel) options["text_encoder_parallel"] = *wish.text_encoder_parallel;
  if (wish.vae_parallel) options["vae_parallel"] = *wish.vae_parallel;
  return options;
}

OrderedJson layout_json(const PlannedLayout& planned) {
  const Prediction& prediction = planned.prediction;
  const parallel::Mesh mesh(planned.layout.sizes);
  OrderedJson peaks = OrderedJson::array();
  const bool by_rank = static_cast<int64_t>(prediction.peak_bytes.size()) == mesh.world_size();
  for (int64_t rank = 0; rank < mesh.world_size() && !prediction.peak_bytes.empty(); ++rank) {
    const int64_t stage = mesh.coordinates(rank)[parallel::Axis::kPipeline];
    peaks.push_back(prediction.peak_bytes[static_cast<size_t>(by_rank ? rank : stage)]);
  }
  OrderedJson json = {{"layout", planned.name},
                      {"options", options_json(planned)},
                      {"devices", mesh.world_size()},
                      {"seconds", prediction.seconds},
                      {"step_seconds", prediction.step_seconds},
                      {"encode_seconds", prediction.encode},
                      {"denoise_seconds", prediction.denoise},
                      {"decode_seconds", prediction.decode},
                      {"step_computing_seconds", prediction.step.computing},
                      {"step_waiting_seconds", prediction.step.waiting},
                      {"step_hidden_seconds", prediction.step.hidden},
                      {"step_launching_seconds", prediction.step.launching},
                      {"step_latency_seconds", prediction.step.latency},
                      {"step_sending_seconds", prediction.step.sending},
                      {"imbalance", prediction.imbalance},
                      {"step_sent_bytes", prediction.sent},
                      {"peak_bytes", std::move(peaks)},
                      {"exact", prediction.is_exact}};
  if (planned.layout.displacement)
    json["displaced_mode"] = parallel::mode_name(planned.layout.displacement->mode);
  return json;
}

Table plan_table(const std::vector<PlannedLayout>& layouts) {
  Table table({{"layout", "layout"},
               {"world_size", "devices"},
               {"seconds", "run", Unit::kSeconds},
               {"step_seconds", "a step", Unit::kSeconds},
               {"computing", "computing", Unit::kShare},
               {"waiting", "waiting", Unit::kShare},
               {"imbalance", "imbalance", Unit::kRatio},
               {"step_sent", "sent/step", Unit::kBytes},
               {"peak_bytes", "memory", Unit::kBytes},
               {"exact", "result"}});
  std::vector<std::pair<const PlannedLayout*, int64_t>> rows;  // with the number of its twins
  for (const PlannedLayout& each : layouts) {
    const auto twin =
        std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return are_twins(*row.first, each); });
    if (twin == rows.end()) {
      rows.emplace_back(&each, 0);
    } else {
      ++twin->second;
    }
  }
  for (const auto& [layout, twins] : rows) {
    const PlannedLayout& each = *layout;
    const Prediction& prediction = each.prediction;
    const std::string name =
        twins == 0 ? each.name : fmt::format("{} (and {} more like it)", each.name, twins);
    table.add({name, parallel::Mesh(each.layout.sizes).world_size(), prediction.seconds,
               prediction.step_seconds, share(prediction.step.computing, prediction.step_seconds),
               share(prediction.step.waiting, prediction.step_seconds), prediction.imbalance,
               static_cast<int64_t>(prediction.sent), prediction.most_bytes(),
               prediction.is_exact ? "exact" : "stale"});
  }
  return table;
}

std::vector<std::string> reasons(const Plan& plan) {
  std::vector<std::string> sentences;
  if (plan.best.empty()) return sentences;
  const PlannedLayout& best = plan.best.front();
  const double waiting = share(best.prediction.step.waiting, best.prediction.step_seconds);
  sentences.push_back(fmt::format(
      "{} is the soonest: a step takes {}, of which its longest rank computes {:.0f} % and waits "
      "{:.0f} %{}, and a rank sends {}.",
      best.name, seconds_of_plan(best.prediction.step_seconds),
      100 * share(best.prediction.step.computing, best.prediction.step_seconds), 100 * waiting,
      waiting > kLeastWait ? fmt::format(" ({})", cause_of_waiting(best.prediction, best.prediction.step))
                           : "",
      bytes_of(best.prediction.sent)));
  const auto tell_other = [&](const std::optional<bool>& chosen, const std::optional<double>& other,
                              double seconds, const char* alone, const char* together) {
    if (chosen && !*chosen && other)
      sentences.push_back(fmt::format("{} in {}, where {} take {}.", alone, seconds_of_plan(seconds),
                                      together, seconds_of_plan(*other)));
  };
  tell_other(best.wish.text_encoder_parallel, best.prediction.other_encode, best.prediction.encode,
             "Each rank encodes the prompts by itself", "ranks that divide the text encoder");
  tell_other(best.wish.vae_parallel, best.prediction.other_decode, best.prediction.decode,
             "One rank of a replica decodes", "ranks that divide the rows");
  std::set<std::string> told = {best.name};
  for (const PlannedLayout& each : plan.obvious) {
    if (!told.insert(each.name).second) continue;
    const double times = share(each.prediction.seconds, best.prediction.seconds);
    if (times <= 1) {
      sentences.push_back(fmt::format("{} would take {:.2f} of its time, but does not fit: it needs {}.",
                                      each.name, times,
                                      bytes_of(static_cast<double>(each.prediction.most_bytes()))));
      continue;
    }
    sentences.push_back(fmt::format("{} takes {:.2f} times as long: {}.", each.name, times,
                                    loss(each.prediction, best.prediction)));
  }
  return sentences;
}

}  // namespace tessera::plan
