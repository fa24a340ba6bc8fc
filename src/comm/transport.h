// Moves tensors between the ranks of a group by point-to-point messages, from which every collective is
// built.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

// A contiguous tensor on its way to or from `peer` (a rank of the group). Sender and receiver agree on its
// size. It must not be touched until the exchange is complete.
struct Message {
  int64_t peer = 0;
  at::Tensor tensor;
};

// Messages in flight. The destructor waits for them and ignores their failure; but while an exception
// unwinds, it abandons them, because a peer may never answer.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Returns when all messages have arrived, or, on a device, when work that is queued from now on will see
  // them. It waits however long the peers take, as long as they live; throws Error(kPeer) naming a lost peer.
  virtual void wait() = 0;
};

// Who posts the other sides of an exchange.
enum class Posting {
  kTogether,  // every rank of the group, as its next exchange of this kind
  kOneWay     // the peer of the only message
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Connects the ranks for exchanges of this kind (kOneWay: from each rank to the next one, and from the last
  // to the first) of tensors on `device`; does nothing if all needed connections exist. Blocks until the
  // other ranks call it too. All ranks must therefore call it for their groups in the same order, before any
  // message is in flight: work queued on a device may wait for a rank that waits here. Throws Error(kPeer) if
  // a rank does not call it.
  virtual void connect(at::Device /*device*/, Posting /*posting*/) {}
  // Posts all messages and returns without waiting for any. Messages between two ranks arrive in the order of
  // posting. Empty tensors are not sent.
  virtual std::unique_ptr<Exchange> post(std::vector<Message> sends, std::vector<Message> receives,
                                         Posting posting) = 0;
  // Whether the transport has its own collectives for tensors on `device`: post_sum() and post_gather().
  virtual bool has_own_collectives(at::Device /*device*/) const { return false; }
  // Replaces `x`, which is contiguous, by its sum over the group. The transport chooses the order of the
  // terms and rounds each partial sum to the dtype of x; every rank gets the same bits.
  virtual std::unique_ptr<Exchange> post_sum(const at::Tensor& x);
  // Writes the `part` of all ranks, which have the same shape, into `whole` in the order of the ranks; both
  // are contiguous.
  virtual std::unique_ptr<Exchange> post_gather(const at::Tensor& part, const at::Tensor& whole);
  // Throws as Exchange::wait() does if a peer is known to be lost; does not wait.
  virtual void require_alive() {}
  // Returns when all messages that were waited for have arrived, in all groups: on a device, wait() only
  // orders later work behind the message. Throws as Exchange::wait() does.
  virtual void synchronize() {}
};

// Throws PeerError: "[rank 3] lost: ...", which tells the supervisor of all ranks which one failed first.
[[noreturn]] void lost_peer(int64_t rank, std::string_view why);
// Throws PeerError for a rank that gave no sign of life for `timeout`: it is stopped, or its host cannot be
// reached.
[[noreturn]] void silent_peer(int64_t rank, std::chrono::milliseconds timeout);

// Connects a rank to all others.
class Fabric {
 public:
  virtual ~Fabric() = default;
  // Returns the transport for a group of these ranks of the world. Messages of groups with different tags do
  // not mix.
  virtual std::shared_ptr<Transport> transport(std::vector<int64_t> ranks, int64_t tag) = 0;
  // Throws as Exchange::wait() does if another rank has been silent for too long or has closed its
  // connection. It is for threads that wait for something outside this fabric. May be called from any thread.
  virtual void require_alive() = 0;
  // See World.
  virtual bool abort() { return false; }
  virtual void trim() {}
};

// A collective as one rank sees it.
struct Collective {
  std::string_view axis;  // the group's axis: "tp", "ulysses", ...
  std::string_view name;  // "all_reduce", "all_to_all", ...
  int64_t bytes = 0;      // the bytes that this rank sends
  int64_t number = 0;     // distinguishes concurrent collectives of a thread
  // Only while it is being posted: its messages, whose peers are ranks of the group, and the group's ranks in
  // the world. A transport's own collective has no messages.
  std::span<const Message> sends = {}, receives = {};
  std::span<const int64_t> ranks = {};
};

// Callbacks for every collective of a rank; reports, timelines and fault tests use them. Each may be empty.
struct CollectiveHooks {
  std::function<void(const Collective&)> began;  // called when it is posted
  // Called when it is complete, with how long it was in flight, and how much of that this rank spent waiting.
  std::function<void(const Collective&, std::chrono::nanoseconds under_way, std::chrono::nanoseconds waited)>
      ended;
};

}  // namespace tessera::comm
