// The hook that observes collectives as the values that they read and write, for whoever records a program.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "core/range.h"

namespace tessera::comm {

// A function of comm/collectives.h, or one that calls such and is recorded as one ("tokens_to_heads"), in a
// group of several ranks.
struct CollectiveValues {
  std::string_view name;
  const Group& group;
  std::vector<at::Tensor> reads, writes;  // all_to_all: by rank
  int64_t dim = 0;                        // of all_gather and reduce_scatter
  std::vector<Range> parts = {};          // the same, by rank
  int64_t to = -1, from = -1;             // of send, receive and send_receive: ranks of the group
};

using CollectiveValuesHook = std::function<void(const CollectiveValues&)>;

// Makes the hook observe the collectives of this thread during its lifetime, for a program, whose messages
// have one dtype each, or for a trace, whose messages are those of the run.
class ObserveCollectiveValues {
 public:
  ObserveCollectiveValues(CollectiveValuesHook hook, bool is_program);
  ~ObserveCollectiveValues();
  ObserveCollectiveValues(const ObserveCollectiveValues&) = delete;
  ObserveCollectiveValues& operator=(const ObserveCollectiveValues&) = delete;

 private:
  CollectiveValuesHook hook_;
  const CollectiveValuesHook* before_;
  bool program_before_;
};

// Whether the collectives of this thread are observed for a program.
bool is_for_program();

// Lives while a collective is posted: what it calls meanwhile, collectives too, is its own work.
class CollectiveScope {
 public:
  CollectiveScope();
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;
  // Passes on what the outermost scope does.
  void record(const CollectiveValues& values) const;
};
bool is_in_collective();
// How many collectives of this thread have begun that are no part of another one.
int64_t collective_number();

}  // namespace tessera::comm
