#include "nn/rows.h"

#include <ATen/Functions.h>

#include <span>
#include <utility>

#include "comm/collectives.h"
#include "parallel/moments.h"

namespace tessera::nn {
namespace {

using parallel::DisplacedExchange;
using parallel::DisplacedMode;
using parallel::HaloPlan;

// Messages of rows are [rows, B, W, C], so that those of several ranks can be concatenated without a copy.
at::Tensor to_rows(const at::Tensor& message) {
  return message.permute({1, 3, 0, 2});  // [B, C, rows, W]
}

// Allocates the messages to and from each rank, with x's dtype. Zeros represent rows that have not arrived,
// such as those beyond the image.
DisplacedExchange::Transfers halo_parts(const HaloPlan& plan, const at::Tensor& x, const comm::Group& group) {
  DisplacedExchange::Transfers parts;
  const auto message = [&](const Range& rows) {
    return at::zeros({rows.length, x.size(0), x.size(3), x.size(1)}, x.options());
  };
  for (int64_t peer = 0; peer < group.size; ++peer) {
    parts.sends.push_back(message(plan.rows(group.rank, peer)));
    parts.receives.push_back(message(plan.rows(peer, group.rank)));
  }
  return parts;
}

// Returns `length` rows: the messages, one after another, at the end if `before` and otherwise at the start,
// and zeros elsewhere. Undefined if all rows would be zeros and the convolution adds that many itself.
at::Tensor joined(std::span<const at::Tensor> messages, int64_t length, int64_t padding, bool before) {
  if (length == 0) return to_rows(messages.front().narrow(0, 0, 0));
  std::vector<at::Tensor> parts;
  int64_t count = 0;
  for (const at::Tensor& message : messages) {
    if (message.size(0) > 0) parts.push_back(message);
    count += message.size(0);
  }
  if (count == 0 && length == padding) return {};
  if (count < length) {
    std::vector<int64_t> shape = messages.front().sizes().vec();
    shape[0] = length - count;
    parts.insert(before ? parts.begin() : parts.end(), at::zeros(shape, messages.front().options()));
  }
  return to_rows(parts.size() == 1 ? parts.front() : at::concat(parts));
}

// Sends the same moments to every other rank.
DisplacedExchange::Transfers moments_parts(const at::Tensor& own, const comm::Group& group) {
  DisplacedExchange::Transfers parts;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const bool is_other = peer != group.rank;
    parts.sends.push_back(is_other ? own.clone() : at::empty({0}, own.options()));
    parts.receives.push_back(is_other ? at::empty_like(own) : parts.sends.back());
  }
  return parts;
}

// Writes into the memory of the previous step, if it exists, so that it is the same in every step.
void keep(at::Tensor& kept, const at::Tensor& moments) {
  if (kept.defined()) {
    kept.copy_(moments);
  } else {
    kept = moments.clone();
  }
}

}  // namespace

std::vector<Range> Rows::bands() const {
  std::vector<Range> all;
  for (int64_t part = 0; part < cut_.ranks; ++part) all.push_back(cut_.part(0, part));
  return all;
}

std::optional<ops::Halo> Rows::halo(const at::Tensor& x, const parallel::RowWindow& window,
                                    const std::function<at::Tensor(const Range&)>& part,
                                    bool always_fresh) const {
  if (is_whole() || window.kernel == 1) return std::nullopt;
  const parallel::Cut out = window.stride == 1 ? cut_ : cut_.coarser();
  std::vector<Range> outputs;
  for (int64_t i = 0; i < cut_.ranks; ++i) outputs.push_back(out.part(0, i));
  const HaloPlan plan(bands(), outputs, window);
  const comm::Group& group = tokens_->group();
  const Range own = cut_.part(0, group.rank);
  const auto fill = [&](const std::vector<at::Tensor>& sends) {
    for (int64_t peer = 0; peer < group.size; ++peer) {
      const Range rows = plan.rows(group.rank, peer);
      if (rows.length > 0)
        to_rows(sends[static_cast<size_t>(peer)]).copy_(part({rows.begin - own.begin, rows.length}));
    }
  };

  DisplacedExchange::Transfers parts;  // `receives` holds the rows that have arrived
  if (DisplacedExchange* const displaced = tokens_->displaced()) {
    DisplacedExchange::Place& place = displaced->next([&] {
      DisplacedExchange::Transfers made = halo_parts(plan, x, group);
      if (always_fresh) made.travel = parallel::Travel::kFresh;
      return made;
    });
    fill(place.parts.sends);
    if (always_fresh || displaced->is_synchronous()) {
      displaced->exchange(place);
    } else {
      displaced->post(place);
    }
    parts = place.parts;
  } else {
    parts = halo_parts(plan, x, group);
    fill(parts.sends);
    comm::all_to_all(parts.sends, parts.receives, group).wait();
  }
  const std::span<const at::Tensor> come = parts.receives;
  const auto before = static_cast<size_t>(group.rank);
  return ops::Halo{joined(come.first(before + 1), plan.above(group.rank), window.padding, /*before=*/true),
                   joined(come.subspan(before), plan.below(group.rank), window.padding, /*before=*/false)};
}

at::Tensor Rows::moments(const at::Tensor& own) const {
  if (is_whole()) return own;
  const comm::Group& group = tokens_->group();
  std::vector<int64_t> rows;
  for (const Range& band : bands()) rows.push_back(band.length);
  const auto share = [&] { return static_cast<double>(rows[group.rank]) / static_cast<double>(grid().rows); };
  const at::Tensor rounded = own.to(at::kFloat);
  const auto merged = [&](std::vector<at::Tensor> parts) {
    parts[static_cast<size_t>(group.rank)] = rounded;
    return parallel::merge_moments(parts, rows);
  };
  DisplacedExchange* const displaced = tokens_->displaced();
  if (displaced == nullptr) {
    DisplacedExchange::Transfers parts = moments_parts(rounded, group);
    comm::all_to_all(parts.sends, parts.receives, group).wait();
    return merged(parts.receives);
  }

  const DisplacedMode mode = displaced->mode();
  const bool are_old = mode == DisplacedMode::kCorrectedAsyncGn || mode == DisplacedMode::kStaleGn;
  DisplacedExchange::Place& place = displaced->next([&] {
    DisplacedExchange::Transfers parts = moments_parts(rounded, group);
    if (!are_old) parts.travel = parallel::Travel::kFresh;
    return parts;
  });
  for (const at::Tensor& message : place.parts.sends) {
    if (message.numel() > 0) message.copy_(rounded);
  }
  if (displaced->is_synchronous() || mode == DisplacedMode::kSyncGn) {
    displaced->exchange(place);
    keep(place.kept, rounded);
    return merged(place.parts.receives);
  }
  if (!are_old) return own;
  const at::Tensor before = place.kept.defined() ? place.kept.clone() : at::Tensor();
  keep(place.kept, rounded);
  at::Tensor result = own;
  if (place.has_come) {
    std::vector<at::Tensor> parts = place.parts.receives;
    parts[static_cast<size_t>(group.rank)] = before;
    const at::Tensor whole = parallel::merge_moments(parts, rows);
    result =
        parallel::displaced_moments(whole, rounded, before, mode == DisplacedMode::kStaleGn ? share() : 1);
  }
  displaced->post(place);
  return result;
}

at::Tensor Rows::attention(const QueriesKeysValues& own, int64_t depth) const {
  return tokens_->attention(own, depth, cut_);
}

}  // namespace tessera::nn
