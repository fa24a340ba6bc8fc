// Files of measurements, against times and shares in closed form.
#include "plan/calibration/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "plan/calibration/probes.h"
#include "plan/calibration/stopwatch.h"
#include "plan/hardware/mapping.h"
#include "plan/machine.h"
#include "plan/run_costs.h"

namespace tessera::plan {
namespace {

constexpr int64_t kCache = 1 << 20;

// A processor whose products take 10 ns and their operations at a rate that falls with the inner dimension;
// all else takes a time for each element.
double toy_seconds(const Work& work) {
  const Demand demand = demand_of(work);
  if (work_kind(work) == WorkKind::kGemm)
    return 1e-8 + demand.gemm_operations / 1e11 * std::pow(size_of(work)[1] / 1000, 0.25);
  return 1e-8 + demand.elements * 1e-9 + demand.gemm_operations / 5e10;
}

std::vector<TimedWork> toy_times(at::ScalarType dtype, const std::string& name) {
  std::vector<TimedWork> timed;
  for (const Probe& probe : make_probes(dtype, kCache)) {
    const Work work = work_of(probe);
    timed.push_back({name, work, toy_seconds(work)});
  }
  return timed;
}

HostFigures toy_host() {
  HostFigures host{.name = "toy", .source = "a formula", .threads = 2, .tile_bytes = 1 << 20, .of_ranks = {}};
  host.cache_bandwidth = 1e11;
  host.dram_bandwidth = 2e10;
  host.memory_bytes = 8e9;
  host.load_rates = {{"fp32", 1.5e9}};
  host.first_use_rate = 1e9;
  host.ranks = 2;
  host.of_ranks.sharing = {{WorkKind::kGemm, {1, 0.9}}, {WorkKind::kVector, {1, 0.5}}};
  host.of_ranks.link = {
      .kind = "shared-memory", .bandwidth = 4e9, .latency = 2e-6, .overlap = 0.25, .measured = {}};
  host.of_ranks.link.measured["all_to_all"] = {{2, 1024, 3e-6}, {2, 1048576, 300e-6}};
  return host;
}

Machine machine_of(const OrderedJson& json) {
  return read_machine(JsonConfig(Json::parse(json.dump()), "machine.json"));
}

// Its time with the share of the machine.
double estimate(const Machine& machine, const Work& work, const std::string& dtype) {
  return map_operator({{}, work}, machine, dtype).latency / machine.efficiency.share(work, dtype);
}

TEST(Calibration, EstimatesWhatWasTimed) {
  const std::vector<TimedWork> timed = toy_times(at::kFloat, "fp32");
  const Machine machine = machine_of(machine_json(toy_host(), timed));
  std::vector<double> vectors;
  for (const TimedWork& each : timed) {
    const double ratio = estimate(machine, each.work, each.dtype) / each.seconds;
    if (share_name(each.work) == "vector") {
      vectors.push_back(std::log(ratio));
    } else {
      EXPECT_NEAR(ratio, 1, 0.002) << kind_name(each.work) << " " << shape_text(each.work);
    }
  }
  // Those of nearly one size share a share, their geometric mean, so that they are right together.
  const double sum = std::accumulate(vectors.begin(), vectors.end(), 0.0);
  EXPECT_NEAR(sum / static_cast<double>(vectors.size()), 0, 0.05);
}

TEST(Calibration, EstimatesWhatLiesBetween) {
  const Machine machine = machine_of(machine_json(toy_host(), toy_times(at::kFloat, "fp32")));
  for (const int64_t rows : {48, 300, 1000, 3000, 20000}) {
    for (const int64_t inner : {400, 768, 1000, 2048}) {
      const Work work = GemmWork{rows, inner, 1024};
      EXPECT_NEAR(estimate(machine, work, "fp32") / toy_seconds(work), 1, 0.08) << shape_text(work);
    }
  }
}

TEST(Calibration, FileHasWhatRanksMeasured) {
  const OrderedJson json = machine_json(toy_host(), toy_times(at::kBFloat16, "bf16"));
  const Machine machine = machine_of(json);
  EXPECT_EQ(machine.tiles, 2);
  EXPECT_EQ(machine.gemm_rates.size(), 1);
  EXPECT_DOUBLE_EQ(machine.shared_speed(WorkKind::kGemm, 2), 0.9);
  EXPECT_DOUBLE_EQ(machine.shared_speed(WorkKind::kVector, 5), 0.5);
  EXPECT_DOUBLE_EQ(machine.shared_speed(WorkKind::kAttention, 2), 1);
  EXPECT_NEAR(*machine.memory_bytes, 4e9, 4e6);  // a device of two
  EXPECT_EQ(machine.load_rates, (std::map<std::string, double>{{"fp32", 1.5e9}}));
  EXPECT_DOUBLE_EQ(*machine.first_use_rate, 1e9);
  ASSERT_EQ(machine.links.size(), 1);
  EXPECT_DOUBLE_EQ(machine.links[0].overlap, 0.25);
  EXPECT_NEAR(transfer_time(machine.links[0], {.name = "all_to_all", .ranks = 2, .sent = 1024}).busy, 3e-6,
              1e-9);
  EXPECT_EQ(links_json(machine.links), json["links"]);
  EXPECT_EQ(machine.efficiency.json().size(), 5);
}

// Ranks that compute at once are slower by the shares of their work, but only those of one host.
TEST(Calibration, RanksOfAHostSlowEachOther) {
  Machine machine = machine_of(machine_json(toy_host(), toy_times(at::kFloat, "fp32")));
  const auto factor = [&](WorkKind kind, int64_t ranks) {
    return costs_on(machine, machine.links, ranks).factors[static_cast<size_t>(kind)];
  };
  EXPECT_DOUBLE_EQ(factor(WorkKind::kVector, 1), 1);
  EXPECT_DOUBLE_EQ(factor(WorkKind::kVector, 2), 2);
  EXPECT_DOUBLE_EQ(factor(WorkKind::kConvolution, 2), 1);
  machine.links[0].devices = 1;
  EXPECT_DOUBLE_EQ(factor(WorkKind::kVector, 2), 1);
}

TEST(ShareTable, MeetsItsPointsAndPowersOfSizes) {
  const auto formula = [](double rows, double columns) {
    return 0.5 * std::pow(rows, 0.1) * std::pow(columns, -0.05);
  };
  ShareTable table;
  for (const double rows : {16., 64., 256., 1024.}) {
    for (const double columns : {100., 400., 1600.})
      table.points.push_back({{std::log(rows), std::log(columns)}, std::log(formula(rows, columns))});
  }
  for (const double rows : {16., 20., 32., 100., 200., 777., 1024.}) {
    for (const double columns : {100., 150., 300., 1000., 1600.})
      EXPECT_NEAR(table.share({rows, columns}) / formula(rows, columns), 1, 0.01) << rows << " x " << columns;
  }
  EXPECT_NEAR(table.share({1, 100}), formula(16, 100), 1e-6);
  EXPECT_NEAR(table.share({1e6, 1e6}), formula(1024, 1600), 1e-6);
}

TEST(ShareTable, TakesTheMeanOfEqualSizes) {
  const ShareTable table = {{{{std::log(8.)}, std::log(0.25)}, {{std::log(8.)}, std::log(1.)}}};
  EXPECT_NEAR(table.share({8}), 0.5, 1e-6);
  EXPECT_NEAR(table.share({80}), 0.5, 1e-6);
}

// Other windows are other kernels: an upsampling convolution of as many rows tells less of a 3 x 3 one than 3
// x 3 convolutions of fewer rows do.
TEST(Calibration, WindowsAreFurtherApartThanRows) {
  OrderedJson json = machine_json(toy_host(), toy_times(at::kFloat, "fp32"));
  json["efficiency"]["convolution"]["fp32"] = {{1024, 4608, 512, 9, 1.5},
                                               {4096, 1152, 128, 36, 3.5},
                                               {16384, 1152, 128, 36, 3.5},
                                               {16384, 2880, 320, 36, 3.5}};
  const Machine machine = machine_of(json);
  const auto convolution = [](int64_t rows, int64_t inner, int64_t columns, double windows) {
    GemmWork work;
    work.rows = rows;
    work.inner = inner;
    work.columns = columns;
    work.is_convolution = true;
    work.overlap = windows;
    return work;
  };
  EXPECT_NEAR(machine.efficiency.share(convolution(16384, 4608, 512, 9), "fp32"), 1.5, 0.25);
  EXPECT_NEAR(machine.efficiency.share(convolution(16384, 1152, 256, 36), "fp32"), 3.5, 0.2);
}

// Norms of heads take six times as long as other vector operators of their size, and have shares of their
// own; a file without these counts them as vector operators.
TEST(Calibration, NormsOfHeadsHaveTheirOwnShares) {
  std::vector<TimedWork> timed = toy_times(at::kFloat, "fp32");
  const auto is_of_heads = [](const TimedWork& each) { return share_name(each.work) == "heads"; };
  for (TimedWork& each : timed) each.seconds *= is_of_heads(each) ? 6 : 1;
  ASSERT_GE(std::count_if(timed.begin(), timed.end(), is_of_heads), 4);
  OrderedJson json = machine_json(toy_host(), timed);
  const Machine machine = machine_of(json);
  json["efficiency"].erase("heads");
  const Machine without = machine_of(json);
  for (const TimedWork& each : timed) {
    if (!is_of_heads(each)) continue;
    EXPECT_NEAR(estimate(machine, each.work, "fp32") / each.seconds, 1, 0.002) << shape_text(each.work);
    EXPECT_LT(estimate(without, each.work, "fp32") / each.seconds, 0.4) << shape_text(each.work);
  }
  EXPECT_EQ(machine.efficiency.json().size(), without.efficiency.json().size() + 1);
}

// No share of a kind is above most(), those of heads neither; what scales a kind scales them too.
TEST(Calibration, SharesOfHeadsBelongToVectorOperators) {
  Efficiency efficiency =
      Efficiency::read(JsonConfig(Json{{"vector", 0.25}, {"heads", 0.5}}, "machine.json"));
  const VectorWork plain{.rows = 64, .width = 64};
  VectorWork heads = plain;
  heads.is_by_head = true;
  EXPECT_NEAR(efficiency.share(plain, "fp32"), 0.25, 1e-9);
  EXPECT_NEAR(efficiency.share(heads, "fp32"), 0.5, 1e-9);
  EXPECT_NEAR(efficiency.most(WorkKind::kVector, "fp32"), 0.5, 1e-9);
  efficiency.scale(WorkKind::kVector, 0.5);
  EXPECT_NEAR(efficiency.share(heads, "fp32"), 0.25, 1e-9);
  efficiency.set(WorkKind::kVector, 0.75);
  EXPECT_NEAR(efficiency.share(heads, "fp32"), 0.75, 1e-9);
}

// The first are of each kind, and each is one operator of its kind, which work_of() checks.
TEST(Probes, AreOperatorsOfAllKinds) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<Probe> probes = make_probes(dtype, kCache);
    std::set<WorkKind> kinds;
    for (size_t i = 0; i < kAllWorkKinds.size(); ++i) kinds.insert(probes[i].kind);
    EXPECT_EQ(kinds.size(), kAllWorkKinds.size());
  }
  const std::vector<Probe> probes = make_probes(at::kFloat, kCache);
  EXPECT_EQ(std::get<GemmWork>(work_of(probes[0])),
            (GemmWork{.rows = 512, .inner = 1152, .columns = 1152, .bias = 1152}));
  EXPECT_EQ(std::get<AttentionWork>(work_of(probes[2])), (AttentionWork{1, 16, 256, 256, 72}));
}

// A clock by which the runs take 9, 1, 5, 3, 7, ... seconds: the first does not count.
TEST(Stopwatch, TakesTheMedianOfOneThread) {
  EXPECT_EQ(lower_quartile({5, 1, 4, 2, 3}), 2);
  EXPECT_EQ(typical({5, 1, 4, 2, 3}, 1), 3);
  EXPECT_EQ(typical({5, 1, 4, 2, 3}, 2), 2);
  double now = 0;
  std::vector<double> runs = {9, 1, 5, 3};
  size_t next = 0;
  const auto run = [&] { now += runs[next++ % runs.size()]; };
  EXPECT_EQ(times_of(run, 0, [&] { return now; }), (std::vector<double>{1, 5, 3}));
  EXPECT_EQ(next, 4);
}

// Looks take 2, 4, 4 and 8 seconds of another clock: a time has the mean of those around it.
TEST(Stopwatch, LooksAtThePaceAroundEachTime) {
  double now = 0;
  std::vector<double> looks = {2, 4, 4, 8};
  size_t next = 0;
  const std::vector<PacedTime> times =
      paced_times_of([&] { now += 3; }, 0, [&] { return now; }, [&] { return looks[next++ % looks.size()]; });
  ASSERT_EQ(times.size(), 3);
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(times[i].seconds, 3);
    EXPECT_EQ(times[i].pace, (std::vector<double>{3, 4, 6})[i]);
  }
  EXPECT_GT(look_at_pace(), 0);
}

TEST(Stopwatch, MemoryHasNoPace) {
  const PacedTime slow{.seconds = 6, .pace = 3};
  EXPECT_NEAR(slow.at_pace(2, 0), 4, 1e-12);
  EXPECT_NEAR(slow.at_pace(2, 3), 5, 1e-12);  // half of the time it waits
  EXPECT_NEAR(slow.at_pace(2, 6), 6, 1e-12);
  EXPECT_NEAR(slow.at_pace(2, 100), 6, 1e-12);
}

}  // namespace
}  // namespace tessera::plan
