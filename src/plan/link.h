// How devices reach each other, and how long a message takes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace tessera::plan {

struct Link {
  std::string kind;                 // "nvlink", "pcie", "ethernet", ...
  std::optional<double> bandwidth;  // bytes/s that a device sends; empty if only the user knows it
  double latency = 0;               // s; 0 if it is unknown
  // Ranks number r / devices are joined by it; others by the next link of the machine. 0 for all.
  int64_t devices = 0;
  // By how much each further peer of an all-to-all slows the bytes of the others: with k peers, whose bytes
  // take different ways, they take 1 + contention * (k - 1) times as long. 0 behind a switch that serves all.
  double contention = 0;
  // The share of a message's time that can hide behind computing.
  double overlap = 1;
  double launch = 0;  // s for which the host is busy with a collective that has bytes

  // Measured: by name of a collective rows of ranks, bytes that one sends, and seconds. Where it has rows,
  // they count instead of bandwidth, latency and contention.
  std::map<std::string, std::vector<std::array<double, 3>>> measured;
};

// What a rank posts, as far as its time depends on it.
struct Transmission {
  std::string name;           // as in the trace: "all_to_all", "send", ...
  bool parts_differ = false;  // each peer gets other bytes, all at once
  int64_t ranks = 1;          // of the group
  int64_t peers = 0;          // to which it sends
  double sent = 0, received = 0;
};

// The time from which all have posted it until this rank's bytes are there, of which `busy` occupies the
// links of the rank. `link` has a bandwidth, or rows for all collectives.
struct TransferTime {
  double busy = 0, latency = 0;
};
TransferTime transfer_time(const Link& link, const Transmission& transmission);

// The first link that joins all ranks from `first` to `last`, or the last of all. `links` is not empty.
const Link& link_between(const std::vector<Link>& links, int64_t first, int64_t last);

// The value of a machine's key `links`. Throws Error(kInput) that names the file and the key.
std::vector<Link> read_links(const JsonConfig& machine);
OrderedJson links_json(const std::vector<Link>& links);

}  // namespace tessera::plan
