// Tests what messages and launches cost, against sums by hand.
#include "plan/link.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "plan/schedule.h"
#include "plan/simulation.h"

namespace tessera::plan {
namespace {

Link link_of(const std::string& json) {
  return read_links(JsonConfig(Json::parse("{\"links\": [" + json + "]}"), "m.json")).front();
}

TEST(Links, SlowEachOtherInAnAllToAll) {
  const Link link = link_of(R"({"kind": "pcie", "gb_per_s": 10, "latency_us": 3, "contention": 0.5})");
  Transmission transmission{.name = "all_to_all", .ranks = 4, .peers = 3, .sent = 1e9, .received = 1e9};
  EXPECT_DOUBLE_EQ(transfer_time(link, transmission).busy, 0.1);
  EXPECT_DOUBLE_EQ(transfer_time(link, transmission).latency, 3e-6);
  transmission.parts_differ = true;
  EXPECT_DOUBLE_EQ(transfer_time(link, transmission).busy, 0.1 * (1 + 0.5 * 2));
  transmission.peers = 1;
  EXPECT_DOUBLE_EQ(transfer_time(link, transmission).busy, 0.1);
}

TEST(Links, TakeWhatWasMeasured) {
  const Link link = link_of(
      R"({"kind": "memory", "gb_per_s": 1, "latency_us": 1, "collectives": {"all_gather": [[2, 1000, 10], [2, 2000, 14], [4, 1000, 30]]}})");
  const auto seconds = [&](int64_t ranks, double bytes) {
    const TransferTime time = transfer_time(link, {.name = "all_gather", .ranks = ranks, .sent = bytes});
    return (time.busy + time.latency) * 1e6;
  };
  EXPECT_NEAR(seconds(2, 1000), 10, 1e-9);
  EXPECT_NEAR(seconds(2, 1500), 12, 1e-9);
  EXPECT_NEAR(seconds(2, 10), 10, 1e-9);      // no message is shorter than the shortest
  EXPECT_NEAR(seconds(2, 20000), 140, 1e-9);  // as fast as the longest
  EXPECT_NEAR(seconds(3, 1000), 10, 1e-9);
  EXPECT_NEAR(seconds(8, 1000), 30, 1e-9);
}

TEST(Links, JoinRanksNearAndFar) {
  std::vector<Link> links(2);
  links[0].kind = "near";
  links[0].devices = 4;
  links[1].kind = "far";
  EXPECT_EQ(link_between(links, 4, 7).kind, "near");
  EXPECT_EQ(link_between(links, 3, 4).kind, "far");
  EXPECT_EQ(link_between(links, 0, 15).kind, "far");
}

TEST(Links, AreWrittenAsTheyAreRead) {
  const Json json = Json::parse(
      R"([{"kind": "a", "gb_per_s": 2.0, "latency_us": 4.0, "devices": 8, "contention": 0.5, "overlap": 0.25,
           "launch_us": 7.0, "collectives": {"send": [[2.0, 1.0, 3.0]]}}])");
  const auto links = read_links(JsonConfig({{"links", json}}, "m.json"));
  const Json written = Json::parse(links_json(links).dump());
  ASSERT_EQ(written.size(), 1U);
  for (const auto& [key, value] : json[0].items()) {
    if (value.is_number()) {
      EXPECT_NEAR(written[0][key].get<double>(), value.get<double>(), 1e-9) << key;
    } else if (value.is_string()) {
      EXPECT_EQ(written[0][key], value) << key;
    }
  }
  EXPECT_NEAR(written[0]["collectives"]["send"][0][2].get<double>(), 3, 1e-9);
}

TEST(Links, RefuseWhatTheyCannotBe) {
  for (const char* const json :
       {R"({"kind": "a", "gb_per_s": 1, "latency_us": 1, "overlap": 1.5})",
        R"({"kind": "a", "gb_per_s": 1, "latency_us": 1, "contention": -1})",
        R"({"kind": "a", "gb_per_s": 1, "latency_us": 1, "overlaps": 1})",
        R"({"kind": "a", "gb_per_s": 1, "latency_us": 1, "collectives": {"send": [[2, 1]]}})",
        R"({"kind": "a", "gb_per_s": 1, "latency_us": 1, "collectives": {"send": []}})"}) {
    EXPECT_THROW(link_of(json), Error) << json;
  }
}

Event operation(const std::string& name) {
  return {.what = OperationEvent{.name = name, .role = {}, .output = {}, .inputs = {}}};
}

Trace one_rank(std::vector<Event> events) {
  Trace trace{.model = {}, .settings = Json::object(), .world_size = 1, .ranks = {}};
  trace.ranks = {{.rank = 0, .events = std::move(events)}};
  return trace;
}

// The host launches ahead of the device while that computes, and is in the way only of what is short.
TEST(Launches, HoldUpShortOperations) {
  const Trace trace =
      one_rank({operation("linear"), operation("linear"), operation("aten::add"), operation("linear")});
  Costs costs;
  costs.launch = 2;
  const auto end_of = [&](std::vector<double> seconds) {
    return simulate(make_schedule(trace, {std::move(seconds)}, {}, "file"), 1, costs, "file").ranks[0].end;
  };
  EXPECT_DOUBLE_EQ(end_of({1, 1, 1, 1}), 7);    // the third launch is over at 6
  EXPECT_DOUBLE_EQ(end_of({10, 1, 1, 1}), 15);  // 2 + 10, and all others wait for the device
  EXPECT_DOUBLE_EQ(end_of({0, 0, 0, 0}), 6);
}

TEST(Launches, OfAttentionToAPartAreMore) {
  Costs costs;
  costs.launch = 1;
  EXPECT_DOUBLE_EQ(
      simulate(make_schedule(one_rank({operation("attention_part")}), {{0}}, {}, "file"), 1, costs, "file")
          .ranks[0]
          .end,
      8);
}

}  // namespace
}  // namespace tessera::plan
