#include "parallel/displaced.h"

#include <ATen/Functions.h>

#include <utility>

#include "comm/collective_values.h"
#include "core/error.h"

namespace tessera::parallel {
namespace {

// At most this many consecutive places share one message, as in the paper's implementation.
constexpr size_t kTogether = 60;

// Returns the bytes that a part takes in the memory of a span. Parts are aligned because their dtypes may
// differ.
int64_t room_for(const at::Tensor& part) {
  constexpr int64_t kAlignment = 16;
  return (static_cast<int64_t>(part.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

// Covers the places [first, first + count). Everything that goes to a rank is one contiguous tensor, and so
// is everything that comes from it.
struct DisplacedExchange::Span {
  size_t first, count;
  Travel travel;
  std::vector<at::Tensor> sends = {}, receives = {};  // by rank
  size_t posted = 0;                                  // places posted in this step
  comm::Pending under_way = {};
};

DisplacedExchange::DisplacedExchange(comm::Group group, Displacement displacement)
    : group_(std::move(group)), displacement_(displacement) {}

DisplacedExchange::~DisplacedExchange() = default;

bool DisplacedExchange::is_synchronous() const {
  return displacement_.mode == DisplacedMode::kFullSync || step_ < displacement_.warmup_steps;
}

void DisplacedExchange::begin(int64_t step, int64_t steps) {
  if (step_ >= 0 && spans_.empty()) make_spans();
  TESSERA_CHECK(spans_.empty() || next_ == places_.size(), "{} of {} places visited", next_, places_.size());
  flush();
  step_ = step;
  steps_ = steps;
  next_ = 0;
}

DisplacedExchange::Place& DisplacedExchange::next(const std::function<Transfers()>& make) {
  flush();
  const size_t index = next_++;
  if (spans_.empty()) return places_.emplace_back(Place{.parts = make(), .index = index});
  TESSERA_CHECK(index < places_.size(), "place {} of {}: a step visits more places than the first one",
                index + 1, places_.size());
  spans_[span_of_[index]].under_way.wait();
  return places_[index];
}

void DisplacedExchange::exchange(Place& place) {
  comm::all_to_all(place.parts.sends, place.parts.receives, group_).wait();
  place.has_come = true;
}

void DisplacedExchange::post(Place& place) {
  const bool is_last = step_ + 1 == steps_;
  if (displacement_.mode == DisplacedMode::kNoSync || is_last) return;
  place.has_come = true;  // from the next visit on
  unsent_.push_back(place.index);
}

void DisplacedExchange::drain() {
  flush();
  for (comm::Pending& pending : std::exchange(of_first_step_, {})) pending.wait();
  for (Span& span : spans_) span.under_way.wait();
}

// Sends what post() recorded, which waited until now because the caller was still reading `receives`.
void DisplacedExchange::flush() {
  for (const size_t index : std::exchange(unsent_, {})) {
    if (spans_.empty()) {
      const Transfers& parts = places_[index].parts;
      of_first_step_.push_back(comm::all_to_all(parts.sends, parts.receives, group_));
      continue;
    }
    Span& span = spans_[span_of_[index]];
    if (++span.posted < span.count) continue;
    span.posted = 0;
    span.under_way = comm::all_to_all(span.sends, span.receives, group_);
  }
}

// The first step has visited all places. From now on, kTogether consecutive places share messages.
void DisplacedExchange::make_spans() {
  flush();
  for (comm::Pending& pending : std::exchange(of_first_step_, {})) pending.wait();
  for (const Place& place : places_) {
    const Travel travel = place.parts.travel;
    // A recorded program cannot view its memory as several dtypes.
    const bool joins = travel == Travel::kTogether && !spans_.empty() && spans_.back().travel == travel &&
                       spans_.back().count < kTogether && !comm::is_for_program();
    if (joins) {
      ++spans_.back().count;
    } else {
      spans_.push_back({.first = place.index, .count = 1, .travel = travel});
    }
    span_of_.push_back(spans_.size() - 1);
  }
  for (Span& span : spans_) {
    if (span.count == 1) {
      span.sends = places_[span.first].parts.sends;
      span.receives = places_[span.first].parts.receives;
    } else {
      join(span, &Transfers::sends);
      join(span, &Transfers::receives);
    }
  }
}

void DisplacedExchange::join(Span& span, std::vector<at::Tensor> Transfers::*side) {
  for (size_t rank = 0; rank < static_cast<size_t>(group_.size); ++rank) {
    const auto part = [&](size_t i) -> at::Tensor& { return (places_[span.first + i].parts.*side)[rank]; };
    int64_t bytes = 0;
    for (size_t i = 0; i < span.count; ++i) bytes += room_for(part(i));
    const at::Tensor all = at::empty({bytes}, part(0).options().dtype(at::kByte));
    int64_t begin = 0;
    for (size_t i = 0; i < span.count; ++i) {
      at::Tensor& own = part(i);
      const int64_t size = static_cast<int64_t>(own.nbytes());
      const at::Tensor here = all.narrow(0, begin, size).view(own.scalar_type()).view(own.sizes());
      here.copy_(own);
      begin += room_for(own);
      own = here;
    }
    (side == &Transfers::sends ? span.sends : span.receives).push_back(all);
  }
}

}  // namespace tessera::parallel
