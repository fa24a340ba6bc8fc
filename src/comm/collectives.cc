#include "comm/collectives.h"

#include <algorithm>

#include "comm/collective_values.h"
#include "core/error.h"

namespace tessera::comm {
namespace {

// This is the maximum size in bytes of a text that a rank may broadcast; requests are far smaller.
constexpr int64_t kMostText = int64_t{1} << 28;
constexpr int64_t kPiece = int64_t{1} << 24;  // bytes that gather_bytes() sends at once

int64_t next_number() {
  thread_local int64_t number = 0;
  return number++;
}

int64_t bytes_of(std::span<const Message> messages) {
  int64_t bytes = 0;
  for (const Message& message : messages) bytes += static_cast<int64_t>(message.tensor.nbytes());
  return bytes;
}

at::Tensor part_of(const at::Tensor& x, int64_t dim, const Range& range) {
  return x.narrow(dim, range.begin, range.length);
}

}  // namespace

Pending::Pending(const Group& group, std::string_view name, std::vector<Message> sends,
                 std::vector<Message> receives, Posting posting)
    : hooks_(group.hooks),
      axis_(group.axis),
      collective_{.axis = {}, .name = name, .bytes = bytes_of(sends), .number = next_number()},
      start_(std::chrono::steady_clock::now()) {
  tell_of_begin(sends, receives, group.ranks);
  exchange_ = group.transport->post(std::move(sends), std::move(receives), posting);
}

Pending::Pending(const Group& group, std::string_view name, int64_t bytes,
                 const std::function<std::unique_ptr<Exchange>(Transport&)>& post)
    : hooks_(group.hooks),
      axis_(group.axis),
      collective_{.axis = {}, .name = name, .bytes = bytes, .number = next_number()},
      start_(std::chrono::steady_clock::now()) {
  tell_of_begin({}, {}, group.ranks);
  exchange_ = post(*group.transport);
}

void Pending::tell_of_begin(std::span<const Message> sends, std::span<const Message> receives,
                            std::span<const int64_t> ranks) {
  if (!hooks_ || !hooks_->began) return;
  Collective told = collective_;
  told.axis = axis_;
  told.sends = sends;
  told.receives = receives;
  told.ranks = ranks;
  hooks_->began(told);
}

void Pending::wait() {
  if (!exchange_) return;
  const std::unique_ptr<Exchange> exchange = std::move(exchange_);
  const auto begin = std::chrono::steady_clock::now();
  exchange->wait();
  const auto end = std::chrono::steady_clock::now();
  collective_.axis = axis_;  // moving this object may have moved the text
  if (hooks_ && hooks_->ended) hooks_->ended(collective_, end - start_, end - begin);
}

void connect(const Group& group, at::Device device, Posting posting) {
  if (group.transport) group.transport->connect(device, posting);
}

at::Tensor all_reduce(at::Tensor x, const Group& group) {
  if (group.size == 1) return x;
  if (group.transport->has_own_collectives(x.device())) {
    if (x.numel() == 0) return x;
    const bool is_own = x.use_count() == 1 && x.storage().use_count() == 1 && x.is_contiguous();
    at::Tensor sum = is_own ? x : x.clone(at::MemoryFormat::Contiguous);
    // The bytes that a rank sends in a ring all-reduce, in which parts of 1 / size go around twice.
    const int64_t bytes = 2 * static_cast<int64_t>(sum.nbytes()) * (group.size - 1) / group.size;
    Pending(group, "all_reduce", bytes, [&](Transport& transport) { return transport.post_sum(sum); }).wait();
    return sum;
  }
  // Each rank sums one part and sends the sum to the others: two messages of 1 / size to every peer.
  const CollectiveScope scope;
  const at::Tensor flat = x.contiguous().view({-1});
  const std::vector<Range> parts = split_evenly(flat.numel(), group.size);
  const at::Tensor own = reduce_scatter(flat, 0, parts, group);
  at::Tensor sum = all_gather(own, 0, parts, group).view(x.sizes());
  scope.record({"all_reduce", group, {x}, {sum}});
  return sum;
}

at::Tensor all_gather(const at::Tensor& part, int64_t dim, std::span<const Range> parts, const Group& group) {
  if (group.size == 1) return part;
  TESSERA_CHECK(static_cast<int64_t>(parts.size()) == group.size, "{} parts for {} ranks", parts.size(),
                group.size);
  const at::Tensor own = part.contiguous();
  const bool are_equal = std::all_of(parts.begin(), parts.end(),
                                     [&](const Range& each) { return each.length == parts.front().length; });
  if (are_equal && own.numel() > 0 && group.transport->has_own_collectives(own.device())) {
    std::vector<int64_t> all = own.sizes().vec();
    all.insert(all.begin(), group.size);
    const at::Tensor whole = at::empty(all, own.options());
    Pending(group, "all_gather", static_cast<int64_t>(own.nbytes()) * (group.size - 1),
            [&](Transport& transport) { return transport.post_gather(own, whole); })
        .wait();
    return whole.movedim(0, dim).flatten(dim, dim + 1);
  }
  const CollectiveScope scope;
  std::vector<int64_t> shape = part.sizes().vec();
  shape[static_cast<size_t>(dim)] = parts.back().end();
  at::Tensor whole = at::empty(shape, part.options());
  // Along the first dimension the parts are contiguous, so they are received in place.
  const bool in_place = dim == 0;
  std::vector<Message> sends, receives;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const at::Tensor place = part_of(whole, dim, parts[static_cast<size_t>(peer)]);
    if (peer == group.rank) continue;
    sends.push_back({peer, own});
    receives.push_back({peer, in_place ? place : at::empty(place.sizes(), place.options())});
  }
  Pending pending(group, "all_gather", std::move(sends), receives);
  part_of(whole, dim, parts[static_cast<size_t>(group.rank)]).copy_(own);
  pending.wait();
  if (!in_place) {
    for (const Message& message : receives)
      part_of(whole, dim, parts[static_cast<size_t>(message.peer)]).copy_(message.tensor);
  }
  scope.record({"all_gather", group, {part}, {whole}, dim, {parts.begin(), parts.end()}});
  return whole;
}

void all_gather_into(at::Tensor& whole, std::span<const Range> parts, const Group& group) {
  if (group.size == 1) return;
  const CollectiveScope scope;
  scope.record({"all_gather",
                group,
                {part_of(whole, 0, parts[static_cast<size_t>(group.rank)])},
                {whole},
                0,
                {parts.begin(), parts.end()}});
  std::vector<Message> sends, receives;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    if (peer == group.rank) continue;
    sends.push_back({peer, part_of(whole, 0, parts[static_cast<size_t>(group.rank)])});
    receives.push_back({peer, part_of(whole, 0, parts[static_cast<size_t>(peer)])});
  }
  Pending(group, "all_gather", std::move(sends), std::move(receives)).wait();
}

void gather(const at::Tensor& part, std::vector<at::Tensor> parts, int64_t root, const Group& group) {
  if (group.rank != root) {
    Pending(group, "gather", {{root, part}}, {}).wait();
    return;
  }
  std::vector<Message> receives;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const at::Tensor& place = parts[static_cast<size_t>(peer)];
    if (peer == root) {
      place.copy_(part);
    } else {
      receives.push_back({peer, place});
    }
  }
  if (!receives.empty()) Pending(group, "gather", {}, std::move(receives)).wait();
}

at::Tensor gather(const at::Tensor& part, int64_t dim, std::span<const Range> parts, int64_t root,
                  const Group& group) {
  if (group.size == 1) return part;
  const at::Tensor own = part.contiguous();
  if (group.rank != root) {
    gather(own, std::vector<at::Tensor>(), root, group);
    return {};
  }
  std::vector<int64_t> shape = part.sizes().vec();
  shape[static_cast<size_t>(dim)] = parts.back().end();
  at::Tensor whole = at::empty(shape, part.options());
  std::vector<at::Tensor> places, received;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    places.push_back(part_of(whole, dim, parts[static_cast<size_t>(peer)]));
    const at::Tensor& place = places.back();
    // A message needs contiguous memory; this rank's own part is only copied.
    const bool in_place = peer == root || place.is_contiguous();
    received.push_back(in_place ? place : at::empty(place.sizes(), place.options()));
  }
  gather(own, received, root, group);
  for (size_t peer = 0; peer < places.size(); ++peer) {
    if (!received[peer].is_same(places[peer])) places[peer].copy_(received[peer]);
  }
  return whole;
}

void broadcast(at::Tensor& x, int64_t root, const Group& group) {
  if (group.size == 1) return;
  std::vector<Message> sends, receives;
  if (group.rank != root) {
    receives.push_back({root, x});
  } else {
    x = x.contiguous();
    for (int64_t peer = 0; peer < group.size; ++peer) {
      if (peer != root) sends.push_back({peer, x});
    }
  }
  Pending(group, "broadcast", std::move(sends), std::move(receives)).wait();
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, std::span<const Range> parts,
                          const Group& group) {
  if (group.size == 1) return x;
  TESSERA_CHECK(static_cast<int64_t>(parts.size()) == group.size, "{} parts for {} ranks", parts.size(),
                group.size);
  const CollectiveScope scope;
  const at::Tensor own = part_of(x, dim, parts[static_cast<size_t>(group.rank)]);
  std::vector<at::Tensor> terms(static_cast<size_t>(group.size));
  std::vector<Message> sends, receives;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    if (peer == group.rank) continue;
    sends.push_back({peer, part_of(x, dim, parts[static_cast<size_t>(peer)]).contiguous()});
    at::Tensor& term = terms[static_cast<size_t>(peer)] = at::empty(own.sizes(), x.options());
    receives.push_back({peer, term});
  }
  Pending(group, "reduce_scatter", std::move(sends), std::move(receives)).wait();
  terms[static_cast<size_t>(group.rank)] = own;
  at::Tensor sum;
  if (group.size == 2) {
    sum = terms[0] + terms[1];  // rounded once, like the sum below
  } else {
    sum = terms[0].to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    for (size_t i = 1; i < terms.size(); ++i) sum += terms[i];
    sum = sum.to(x.scalar_type());
  }
  scope.record({"reduce_scatter", group, {x}, {sum}, dim, {parts.begin(), parts.end()}});
  return sum;
}

Pending all_to_all(std::vector<at::Tensor> sends, std::vector<at::Tensor> receives, const Group& group) {
  const CollectiveScope scope;
  if (group.size > 1) scope.record({"all_to_all", group, sends, receives});
  std::vector<Message> out, in;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const size_t i = static_cast<size_t>(peer);
    if (peer == group.rank) continue;
    out.push_back({peer, sends[i]});
    in.push_back({peer, receives[i]});
  }
  Pending pending = group.size == 1 ? Pending() : Pending(group, "all_to_all", std::move(out), std::move(in));
  const size_t own = static_cast<size_t>(group.rank);
  if (!receives[own].is_same(sends[own])) receives[own].copy_(sends[own]);
  return pending;
}

Pending send(const at::Tensor& x, int64_t peer, const Group& group) {
  const CollectiveScope scope;
  scope.record({.name = "send", .group = group, .reads = {x}, .writes = {}, .to = peer});
  return Pending(group, "send", {{peer, x}}, {}, Posting::kOneWay);
}

Pending receive(at::Tensor& x, int64_t peer, const Group& group) {
  const CollectiveScope scope;
  scope.record({.name = "receive", .group = group, .reads = {}, .writes = {x}, .from = peer});
  return Pending(group, "receive", {}, {{peer, x}}, Posting::kOneWay);
}

Pending send_receive(const at::Tensor& sent, int64_t to, at::Tensor& received, int64_t from,
                     const Group& group) {
  const CollectiveScope scope;
  scope.record({.name = "send_receive",
                .group = group,
                .reads = {sent},
                .writes = {received},
                .to = to,
                .from = from});
  return Pending(group, "send_receive", {{to, sent}}, {{from, received}});
}

std::string broadcast_bytes(const std::string& bytes, int64_t root, const Group& group) {
  if (group.size == 1) return bytes;
  const auto all_peers = [&](const at::Tensor& x) {
    std::vector<Message> messages;
    for (int64_t peer = 0; peer < group.size; ++peer) {
      if (peer != group.rank) messages.push_back({peer, x});
    }
    return messages;
  };
  // Sends the length first, which only the root knows.
  at::Tensor length = at::tensor({static_cast<int64_t>(bytes.size())}, at::kLong);
  if (group.rank == root) {
    const at::Tensor data = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), data.mutable_data_ptr<uint8_t>());
    Pending(group, "broadcast", all_peers(length), {}).wait();
    Pending(group, "broadcast", all_peers(data), {}).wait();
    return bytes;
  }
  Pending(group, "broadcast", {}, {{root, length}}).wait();
  const int64_t size = length.item<int64_t>();
  if (size < 0 || size > kMostText)
    lost_peer(group.ranks[static_cast<size_t>(root)], fmt::format("it announced a text of {} bytes", size));
  const at::Tensor data = at::empty({size}, at::kByte);
  Pending(group, "broadcast", {}, {{root, data}}).wait();
  return {static_cast<const char*>(data.const_data_ptr()), static_cast<size_t>(data.numel())};
}

std::vector<std::string> gather_bytes(const std::string& bytes, int64_t root, const Group& group) {
  if (group.rank != root) {
    const auto size = static_cast<int64_t>(bytes.size());
    Pending(group, "gather", {{root, at::tensor({size}, at::kLong)}}, {}).wait();
    for (int64_t begin = 0; begin < size; begin += kPiece) {
      const at::Tensor piece = at::empty({std::min(kPiece, size - begin)}, at::kByte);
      std::copy_n(bytes.begin() + begin, piece.numel(), piece.mutable_data_ptr<uint8_t>());
      Pending(group, "gather", {{root, piece}}, {}).wait();
    }
    return {};
  }
  std::vector<std::string> all(static_cast<size_t>(group.size));
  all[static_cast<size_t>(root)] = bytes;
  at::Tensor length = at::empty({1}, at::kLong);
  for (int64_t peer = 0; peer < group.size; ++peer) {
    if (peer == root) continue;
    Pending(group, "gather", {}, {{peer, length}}).wait();
    const int64_t size = length.item<int64_t>();
    if (size < 0)
      lost_peer(group.ranks[static_cast<size_t>(peer)], fmt::format("it announced {} bytes", size));
    std::string& text = all[static_cast<size_t>(peer)];
    while (static_cast<int64_t>(text.size()) < size) {
      const at::Tensor piece =
          at::empty({std::min(kPiece, size - static_cast<int64_t>(text.size()))}, at::kByte);
      Pending(group, "gather", {}, {{peer, piece}}).wait();
      text.append(static_cast<const char*>(piece.const_data_ptr()), static_cast<size_t>(piece.numel()));
    }
  }
  return all;
}

void barrier(const Group& group) {
  if (group.size == 1) return;
  std::vector<Message> sends, receives;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    if (peer == group.rank) continue;
    sends.push_back({peer, at::zeros({1}, at::kByte)});
    receives.push_back({peer, at::empty({1}, at::kByte)});
  }
  Pending(group, "barrier", std::move(sends), std::move(receives)).wait();
}

void require_alive(const Group& group) {
  if (group.transport) group.transport->require_alive();
}

void synchronize(const Group& group) {
  if (group.transport) group.transport->synchronize();
}

}  // namespace tessera::comm
