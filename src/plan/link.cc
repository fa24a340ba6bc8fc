#include "plan/link.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/text.h"

namespace tessera::plan {
namespace {

constexpr double kBytesPerGb = 1e9, kSecondsPerUs = 1e-6;
constexpr double kLeastGbPerS = 1e-6;  // GB/s
constexpr int64_t kMostDevices = 1 << 20;

const std::vector<std::string>& keys() {
  static const std::vector<std::string> names = {"kind",       "gb_per_s", "latency_us", "devices",
                                                 "contention", "overlap",  "launch_us",  "collectives"};
  return names;
}

// Seconds for this many bytes, interpolated between the nearest measured sizes; beyond them, at the rate of
// the largest.
double interpolate(const std::vector<std::array<double, 3>>& rows, double ranks, double bytes) {
  // The rows for the nearest number of ranks.
  double nearest = rows.front()[0];
  for (const auto& row : rows) {
    if (std::abs(row[0] - ranks) < std::abs(nearest - ranks)) nearest = row[0];
  }
  const std::array<double, 3>*below = nullptr, *above = nullptr;
  for (const auto& row : rows) {
    if (row[0] != nearest) continue;
    if (row[1] <= bytes && (below == nullptr || row[1] > (*below)[1])) below = &row;
    if (row[1] >= bytes && (above == nullptr || row[1] < (*above)[1])) above = &row;
  }
  if (below == nullptr) return (*above)[2];
  if (above == nullptr)
    return (*below)[2] * (*below)[1] > 0 ? (*below)[2] * bytes / (*below)[1] : (*below)[2];
  if ((*above)[1] == (*below)[1]) return (*below)[2];
  return (*below)[2] + ((*above)[2] - (*below)[2]) * (bytes - (*below)[1]) / ((*above)[1] - (*below)[1]);
}

std::map<std::string, std::vector<std::array<double, 3>>> read_collectives(const JsonConfig& link) {
  std::map<std::string, std::vector<std::array<double, 3>>> measured;
  const std::string expected = "lists of [ranks, bytes, microseconds] by the name of a collective";
  if (link.value("collectives") == nullptr) return measured;
  const JsonConfig collectives = link.object("collectives");
  for (const auto& [name, rows] : collectives.values().items()) {
    if (!rows.is_array() || rows.empty()) link.fail("collectives", expected);
    for (const Json& row : rows) {
      const bool is_row =
          row.is_array() && row.size() == 3 && std::all_of(row.begin(), row.end(), [](const Json& number) {
            return number.is_number() && number.get<double>() >= 0 && std::isfinite(number.get<double>());
          });
      if (!is_row) link.fail("collectives", expected);
      measured[name].push_back(
          {row[0].get<double>(), row[1].get<double>(), row[2].get<double>() * kSecondsPerUs});
    }
  }
  return measured;
}

Link read_link(const JsonConfig& config) {
  for (const auto& [key, value] : config.values().items()) {
    if (std::find(keys().begin(), keys().end(), key) != keys().end()) continue;
    const auto nearest = nearest_word(key, keys());
    input_error(config.where(), "'{}' is not a key of a link{}", printable(key),
                nearest ? fmt::format("; did you mean '{}'?", *nearest)
                        : fmt::format("; there are {}", fmt::join(keys(), ", ")));
  }
  const auto is_null = [&](const std::string& key) {
    const Json* const value = config.value(key);
    return value && value->is_null();
  };
  Link link;
  link.kind = printable(config.string("kind"));
  if (link.kind.empty()) config.fail("kind", "a text");
  if (!is_null("gb_per_s")) {
    const double rate = config.number("gb_per_s");
    if (!(rate > 0) || std::isinf(rate))
      config.fail("gb_per_s", "a positive number of GB/s, or null where only the user knows it");
    if (rate < kLeastGbPerS)
      config.fail("gb_per_s",
                  fmt::format("at least {} GB/s, or null where only the user knows it", kLeastGbPerS));
    link.bandwidth = rate * kBytesPerGb;
  }
  if (!is_null("latency_us")) {
    link.latency = config.number("latency_us");
    if (!(link.latency > 0) || std::isinf(link.latency))
      config.fail("latency_us", "a positive number of microseconds, or null where it is unknown");
    link.latency *= kSecondsPerUs;
  }
  if (config.has("devices")) link.devices = config.count("devices", kMostDevices);
  link.contention = config.number_within("contention", 0, 1e6, 0);
  link.overlap = config.number_within("overlap", 0, 1, 1);
  link.launch = config.number_within("launch_us", 0, 1e9, 0) * kSecondsPerUs;
  link.measured = read_collectives(config);
  return link;
}

}  // namespace

TransferTime transfer_time(const Link& link, const Transmission& transmission) {
  const double bytes = std::max(transmission.sent, transmission.received);
  if (const auto rows = link.measured.find(transmission.name); rows != link.measured.end())
    return {interpolate(rows->second, static_cast<double>(transmission.ranks), bytes), 0};
  const double crowd = transmission.parts_differ && transmission.peers > 1
                           ? 1 + link.contention * static_cast<double>(transmission.peers - 1)
                           : 1;
  return {bytes * crowd / link.bandwidth.value_or(1), link.latency};
}

const Link& link_between(const std::vector<Link>& links, int64_t first, int64_t last) {
  TESSERA_CHECK(!links.empty(), "no link");
  for (const Link& link : links) {
    if (link.devices == 0 || first / link.devices == last / link.devices) return link;
  }
  return links.back();
}

std::vector<Link> read_links(const JsonConfig& machine) {
  const Json* const list = machine.value("links");
  if (!list || !list->is_array()) machine.fail("links", "a list of links between devices");
  std::vector<Link> links;
  for (const Json& each : *list) {
    const JsonConfig entry(each, fmt::format("{}: links[{}]", machine.where(), links.size()));
    Link link = read_link(entry);
    if (std::any_of(links.begin(), links.end(), [&](const Link& other) { return other.kind == link.kind; }))
      entry.fail("kind", "a kind that no link before it has");
    links.push_back(std::move(link));
  }
  return links;
}

OrderedJson links_json(const std::vector<Link>& links) {
  OrderedJson list = OrderedJson::array();
  for (const Link& link : links) {
    OrderedJson& json = list.emplace_back(OrderedJson::object());
    json["kind"] = link.kind;
    json["gb_per_s"] = link.bandwidth ? OrderedJson(*link.bandwidth / kBytesPerGb) : OrderedJson();
    json["latency_us"] = link.latency > 0 ? OrderedJson(link.latency / kSecondsPerUs) : OrderedJson();
    if (link.devices > 0) json["devices"] = link.devices;
    if (link.contention > 0) json["contention"] = link.contention;
    if (link.overlap < 1) json["overlap"] = link.overlap;
    if (link.launch > 0) json["launch_us"] = link.launch / kSecondsPerUs;
    for (const auto& [name, rows] : link.measured) {
      OrderedJson& table = json["collectives"][name];
      for (const auto& row : rows) table.push_back({row[0], row[1], row[2] / kSecondsPerUs});
    }
  }
  return list;
}

}  // namespace tessera::plan
