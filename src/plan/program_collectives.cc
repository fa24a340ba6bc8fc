#include "plan/program_collectives.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "core/range.h"
#include "plan/saturating.h"
#include "plan/stablehlo_costs.h"

namespace tessera::plan {
namespace {

constexpr std::array<std::string_view, 5> kCollectives = {"all_reduce", "all_gather", "reduce_scatter",
                                                          "all_to_all", "collective_permute"};
// Collectives whose messages do not depend on the operation alone, such as asynchronous pairs.
constexpr std::array<std::string_view, 6> kUnknown = {
    "collective_broadcast", "cross-replica-sum", "send", "recv", "infeed", "outfeed"};
constexpr int64_t kMostPartitions = 1 << 20;

// "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>": the rows of a table of whole numbers.
std::vector<std::vector<int64_t>> rows_of(const StablehloModule& module, const ProgramOperation& operation,
                                          std::string_view name) {
  const auto damaged = [&] {
    module.fail(operation, fmt::format("{} has no {} that can be read", operation.name, name));
  };
  std::string_view text = attribute_of(operation, name);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  constexpr std::string_view kDense = "dense<", kOne = "dense<0>";
  if (text.starts_with(kOne)) return {{0}};
  if (!text.starts_with(kDense) || text.substr(kDense.size()).find_first_of("[>") != 0 ||
      text[kDense.size()] != '[')
    damaged();
  std::vector<std::vector<int64_t>> rows;
  for (size_t at = kDense.size() + 1; at < text.size() && text[at] == '[';) {
    rows.push_back(numbers_in(text.substr(at)));
    at = text.find(']', at);
    if (at != std::string_view::npos) at = text.find_first_not_of(", ", at + 1);
  }
  for (const std::vector<int64_t>& row : rows) {
    const bool fits = std::all_of(row.begin(), row.end(),
                                  [](int64_t each) { return each >= -1 && each < kMostPartitions; });
    if (!fits || row.empty()) damaged();
  }
  if (rows.empty()) damaged();
  return rows;
}

std::string_view groups_name(const ProgramOperation& operation) {
  return operation.name == "collective_permute" ? "source_target_pairs" : "replica_groups";
}

// A partition's group, and its place in it.
struct Member {
  std::vector<int64_t> ranks;
  int64_t place = 0;

  int64_t size() const { return std::ssize(ranks); }
  int64_t at(int64_t other) const { return ranks[static_cast<size_t>((other % size() + size()) % size())]; }
};

std::optional<Member> member_of(const StablehloModule& module, const ProgramOperation& operation,
                                int64_t rank) {
  for (std::vector<int64_t>& row : rows_of(module, operation, "replica_groups")) {
    std::erase(row, -1);  // pads the rows of uneven groups
    const auto found = std::find(row.begin(), row.end(), rank);
    if (found != row.end()) return Member{row, found - row.begin()};
  }
  return std::nullopt;
}

CollectiveEvent event_of(const Member& member, std::string name) {
  CollectiveEvent event;
  event.name = std::move(name);
  event.ranks = member.ranks;
  return event;
}

// Adds a message to another rank and one from it, unless they are empty.
void add(std::vector<Transfer>& transfers, int64_t peer, int64_t bytes) {
  if (bytes > 0) transfers.push_back({peer, bytes});
}

void finish(CollectiveEvent& event) {
  for (const Transfer& each : event.sends) event.bytes = sum(event.bytes, each.bytes);
}

// Sends to each other rank what `sent` gives, and receives what `received` gives, by their places.
CollectiveEvent exchange(const Member& member, std::string name, const std::function<int64_t(int64_t)>& sent,
                         const std::function<int64_t(int64_t)>& received) {
  CollectiveEvent event = event_of(member, std::move(name));
  for (int64_t place = 0; place < member.size(); ++place) {
    if (place == member.place) continue;
    add(event.sends, member.at(place), sent(place));
    add(event.receives, member.at(place), received(place));
  }
  finish(event);
  return event;
}

// The bytes of part `place` if the elements of all tensors are divided among the ranks.
std::function<int64_t(int64_t)> part_bytes(const std::vector<TensorShape>& shapes, int64_t ranks) {
  return [=](int64_t place) {
    int64_t bytes = 0;
    for (const TensorShape& each : shapes) {
      const auto size = static_cast<int64_t>(c10::elementSize(each.dtype));
      bytes = sum(bytes, size * split_evenly(each.bytes() / size, place, ranks).length);
    }
    return bytes;
  };
}

// A sum in which each rank's part goes round the ring twice.
CollectiveEvent ring_sum(const Member& member, const std::vector<TensorShape>& shapes) {
  CollectiveEvent event = event_of(member, "all_reduce");
  const auto bytes = part_bytes(shapes, member.size());
  const auto wrapped = [&](int64_t place) { return (place % member.size() + member.size()) % member.size(); };
  for (const int64_t first : {member.place, member.place + 1}) {
    for (int64_t hop = 0; hop + 1 < member.size(); ++hop) {
      add(event.sends, member.at(member.place + 1), bytes(wrapped(first - hop)));
      add(event.receives, member.at(member.place - 1), bytes(wrapped(first - hop - 1)));
    }
  }
  finish(event);
  return event;
}

// The ranks that the pairs join with a rank, in order; none if the rank is in no pair.
std::vector<int64_t> ring_of(const std::vector<std::vector<int64_t>>& pairs, int64_t rank) {
  std::multimap<int64_t, int64_t> joined;
  for (const std::vector<int64_t>& pair : pairs) {
    joined.emplace(pair[0], pair[1]);
    joined.emplace(pair[1], pair[0]);
  }
  if (!joined.contains(rank)) return {};
  std::set<int64_t> found = {rank};
  for (std::vector<int64_t> ahead = {rank}; !ahead.empty();) {
    const auto [begin, end] = joined.equal_range(ahead.back());
    ahead.pop_back();
    for (auto each = begin; each != end; ++each) {
      if (found.insert(each->second).second) ahead.push_back(each->second);
    }
  }
  return {found.begin(), found.end()};
}

std::optional<CollectiveEvent> permutation(const StablehloModule& module, const ProgramOperation& operation,
                                           int64_t bytes, int64_t rank) {
  CollectiveEvent event;
  event.name = "collective_permute";
  const std::vector<std::vector<int64_t>> pairs = rows_of(module, operation, "source_target_pairs");
  for (const std::vector<int64_t>& pair : pairs) {
    if (pair.size() != 2) module.fail(operation, "source_target_pairs are no pairs");
    if (pair[0] == pair[1]) continue;
    if (pair[0] == rank) add(event.sends, pair[1], bytes);
    if (pair[1] == rank) add(event.receives, pair[0], bytes);
  }
  event.ranks = ring_of(pairs, rank);
  if (event.ranks.empty()) return std::nullopt;
  finish(event);
  return event;
}

// For everything but sums.
std::optional<CollectiveEvent> direct(const StablehloModule& module, const ProgramOperation& operation,
                                      const std::vector<TensorShape>& shapes, int64_t rank) {
  if (operation.name == "collective_permute") return permutation(module, operation, bytes_of(shapes), rank);
  const auto member = member_of(module, operation, rank);
  if (!member) return std::nullopt;
  const int64_t whole = bytes_of(shapes);
  const int64_t bytes = operation.name == "all_gather" ? whole : whole / member->size();
  const auto constant = [=](int64_t /*place*/) { return bytes; };
  return exchange(*member, std::string(operation.name), constant, constant);
}

void visit(const ProgramBlock& block, const std::function<void(const ProgramOperation&)>& use) {
  for (const ProgramOperation& each : block.operations) {
    use(each);
    for (const ProgramBlock& region : each.regions) visit(region, use);
  }
}

}  // namespace

bool is_collective(const ProgramOperation& operation) {
  return std::find(kCollectives.begin(), kCollectives.end(), operation.name) != kCollectives.end();
}

std::vector<std::vector<int64_t>> replica_groups(const StablehloModule& module,
                                                 const ProgramOperation& operation) {
  return rows_of(module, operation, "replica_groups");
}

int64_t partitions_of(const StablehloModule& module) {
  int64_t last = 0;
  for (const auto& [name, function] : module.functions) {
    visit(function.body, [&](const ProgramOperation& operation) {
      if (std::find(kUnknown.begin(), kUnknown.end(), operation.name) != kUnknown.end())
        module.fail(operation, fmt::format("what stablehlo.{} sends is not known here", operation.name));
      if (!is_collective(operation)) return;
      for (const auto& row : rows_of(module, operation, groups_name(operation)))
        last = std::max(last, *std::max_element(row.begin(), row.end()));
    });
  }
  return last + 1;
}

std::vector<CollectiveEvent> collective_events(const StablehloModule& module, const ProgramFunction& function,
                                               const ProgramOperation& operation, int64_t rank) {
  const std::vector<TensorShape> shapes = shapes_of(function, operation.reads);
  if (operation.name == "all_reduce") {
    const auto member = member_of(module, operation, rank);
    return member ? std::vector<CollectiveEvent>{ring_sum(*member, shapes)} : std::vector<CollectiveEvent>();
  }
  const auto event = direct(module, operation, shapes, rank);
  return event ? std::vector<CollectiveEvent>{*event} : std::vector<CollectiveEvent>();
}

std::vector<CollectiveEvent> engine_collective_events(const StablehloModule& module,
                                                      const ProgramFunction& function,
                                                      const std::vector<const ProgramOperation*>& operations,
                                                      const std::string& axis, int64_t rank) {
  std::vector<TensorShape> shapes;
  const ProgramOperation* first = nullptr;
  for (const ProgramOperation* const each : operations) {
    if (!is_collective(*each)) continue;
    if (first != nullptr && first->name != each->name)
      module.fail(*each, "a collective of the engine is of two kinds");
    first = each;
    const std::vector<TensorShape> read = shapes_of(function, each->reads);
    shapes.insert(shapes.end(), read.begin(), read.end());
  }
  std::vector<CollectiveEvent> events;
  if (first == nullptr) return events;
  if (first->name != "all_reduce") {
    if (auto event = direct(module, *first, shapes, rank)) events.push_back(std::move(*event));
    if (!events.empty() && events[0].name == "collective_permute") events[0].name = "send_receive";
  } else if (const auto member = member_of(module, *first, rank)) {
    const auto bytes = part_bytes(shapes, member->size());
    const auto own = [&](int64_t /*place*/) { return bytes(member->place); };
    events.push_back(exchange(*member, "reduce_scatter", bytes, own));
    events.push_back(exchange(*member, "all_gather", own, bytes));
  }
  for (CollectiveEvent& event : events) event.axis = axis;
  return events;
}

}  // namespace tessera::plan
