// The hook that observes collectives as the values that they read and write, for recording programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "core/range.h"

namespace tessera::comm {

// A function of comm/collectives.h, or a function that calls such functions and is recorded as a unit
// ("tokens_to_heads"), in a group of several ranks.
struct CollectiveValues {
  std::string_view name;
  const Group& group;
  std::vector<at::Tensor> reads, writes;  // for all_to_all: by rank
  int64_t dim = 0;                        // for all_gather and reduce_scatter
  std::vector<Range> parts = {};          // the same, by rank
  int64_t to = -1, from = -1;             // for send, receive and send_receive: ranks of the group
};

using CollectiveValuesHook = std::function<void(const CollectiveValues&)>;

// Makes the hook observe the collectives of this thread during its lifetime, either for a program, where each
// message has one dtype, or for a trace, where messages are those of the run.
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

// Lives while a collective is posted: everything that it calls meanwhile, including other collectives, is
// part of it.
class CollectiveScope {
 public:
  CollectiveScope();
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;
  // Passes the values on to the hook if this is the outermost scope.
  void record(const CollectiveValues& values) const;
};
bool is_in_collective();
// How many collectives of this thread that are not part of another one have begun.
int64_t collective_number();

}  // namespace tessera::comm
