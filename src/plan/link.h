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
  std::string kind;                 // of kinds such as "nvlink", "pcie", "ethernet"
  std::optional<double> bandwidth;  // bytes/s that a device sends; empty if only the user can know it
  double latency = 0;               // s; 0 if unknown
  // It joins ranks with the same number r / devices; others are joined by the next link of the machine. 0 for
  // all.
  int64_t devices = 0;
  // How much each further peer of an all-to-all slows down the bytes of the others: with k peers, whose bytes
  // take different paths, they take 1 + contention * (k - 1) times as long. 0 behind a switch with enough
  // capacity for all.
  double contention = 0;
  // The share of a message's time that computing can hide.
  double overlap = 1;
  double launch = 0;  // s in which the host is busy with a collective that has bytes

  // Measured times: by name of a collective, rows of ranks, bytes that one sends, and seconds. Where rows
  // exist, they replace bandwidth, latency and contention.
  std::map<std::string, std::vector<std::array<double, 3>>> measured;
};

// What a rank posts, as far as its time depends on it.
struct Transmission {
  std::string name;           // as in the trace: "all_to_all", "send", ...
  bool parts_differ = false;  // whether each peer gets other bytes, all at once
  int64_t ranks = 1;          // of the group
  int64_t peers = 0;          // to which it sends
  double sent = 0, received = 0;
};

// The time from when all ranks have posted a message until this rank's bytes have arrived; for `busy` of it,
// the message occupies the links of the rank. `link` has a bandwidth, or rows for all collectives.
struct TransferTime {
  double busy = 0, latency = 0;
};
TransferTime transfer_time(const Link& link, const Transmission& transmission);

// The first link that joins all ranks from `first` to `last`, otherwise the last link. `links` is not empty.
const Link& link_between(const std::vector<Link>& links, int64_t first, int64_t last);

// The value of a machine's key `links`. Throws Error(kInput) that names the file and the key.
std::vector<Link> read_links(const JsonConfig& machine);
OrderedJson links_json(const std::vector<Link>& links);

}  // namespace tessera::plan
