#include "plan/stablehlo_regions.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "plan/program_collectives.h"

namespace tessera::plan {
namespace {

// The operation of a block that computes only this value; null if there is none.
const ProgramOperation* writer(const ProgramBlock& block, size_t value) {
  for (const ProgramOperation& each : block.operations) {
    if (each.writes.size() == 1 && each.writes[0] == value) return &each;
  }
  return nullptr;
}

class Loop {
 public:
  Loop(const ProgramFunction& function, const ProgramOperation& loop)
      : function_(function), loop_(loop), condition_(loop.regions[0]), body_(loop.regions[1]) {}

  std::optional<int64_t> trips() const {
    const auto& returned = condition_.operations.back().reads;
    const ProgramOperation* const compared = returned.size() == 1 ? writer(condition_, returned[0]) : nullptr;
    if (compared == nullptr || compared->name != "compare" || compared->reads.size() != 2 ||
        compared->words.find("LT") == std::string_view::npos)
      return std::nullopt;
    const auto& counters = condition_.arguments;
    const auto place = std::find(counters.begin(), counters.end(), compared->reads[0]) - counters.begin();
    const auto i = static_cast<size_t>(place);
    if (i >= counters.size() || i >= loop_.reads.size()) return std::nullopt;
    const auto begin = integer(loop_.reads[i]), end = integer(compared->reads[1]), step = step_of(i);
    int64_t length = 0;
    if (!begin || !end || !step || __builtin_sub_overflow(*end, *begin, &length)) return std::nullopt;
    return length <= 0 ? 0 : (length - 1) / *step + 1;
  }

 private:
  std::optional<int64_t> integer(size_t value) const {
    const auto found = function_.integers.find(value);
    return found == function_.integers.end() ? std::nullopt : std::optional(found->second);
  }

  // What the body adds to argument i, if that is a positive constant.
  std::optional<int64_t> step_of(size_t i) const {
    const auto& returned = body_.operations.back().reads;
    const ProgramOperation* const added = i < returned.size() ? writer(body_, returned[i]) : nullptr;
    if (added == nullptr || added->name != "add" || added->reads.size() != 2 || i >= body_.arguments.size())
      return std::nullopt;
    for (const size_t first : {0, 1}) {
      const auto step = integer(added->reads[1 - first]);
      if (added->reads[first] == body_.arguments[i] && step && *step > 0) return step;
    }
    return std::nullopt;
  }

  const ProgramFunction& function_;
  const ProgramOperation& loop_;
  const ProgramBlock &condition_, &body_;
};

// Whether a value is the number of the partition, as determined by MlirBuilder::partition(): one of the
// numbers that arrive when every partition sends j, for j = 0, 1, .., to partition j.
bool is_partition(const StablehloModule& module, const ProgramFunction& function, size_t value) {
  const ProgramOperation* found = nullptr;
  for (const std::string_view name : {"reshape", "slice", "all_to_all", "iota"}) {
    found = writer(function.body, found == nullptr ? value : found->reads[0]);
    if (found == nullptr || found->name != name || found->reads.size() != (name == "iota" ? 0 : 1))
      return false;
    if (name != "all_to_all") continue;
    const MlirType& sent = function.values[found->reads[0]];
    const std::vector<std::vector<int64_t>> groups = replica_groups(module, *found);
    std::vector<int64_t> all(groups.front().size());
    std::iota(all.begin(), all.end(), int64_t{0});
    if (groups.size() != 1 || groups.front() != all || !sent || sent->sizes != std::vector{std::ssize(all)})
      return false;
  }
  return true;
}

}  // namespace

int64_t trips_of(const StablehloModule& module, const ProgramFunction& function,
                 const ProgramOperation& loop) {
  if (loop.regions.size() != 2) module.fail(loop, "a while has a condition and a body");
  const auto trips = Loop(function, loop).trips();
  if (!trips)
    module.fail(loop,
                "how often stablehlo.while runs is not known; loops that count from a constant to a constant "
                "are counted");
  return *trips;
}

const ProgramBlock& branch_of(const StablehloModule& module, const ProgramFunction& function,
                              const ProgramOperation& choice, int64_t rank) {
  if (choice.regions.empty()) module.fail(choice, "a case has no branches");
  if (choice.reads.empty() || !is_partition(module, function, choice.reads[0]))
    module.fail(choice,
                "which branch of stablehlo.case runs is not known; those are followed that the number of the "
                "partition chooses, as in programs of ours");
  return choice.regions[std::min(static_cast<size_t>(rank), choice.regions.size() - 1)];
}

}  // namespace tessera::plan
