// What moves tensors between the ranks of a group: point-to-point messages, from which every collective is
// built.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

// A tensor on its way to or from `peer` (a rank of the group). Contiguous; a receiver's has the size of the
// sender's. Nobody may touch it until the exchange is over.
struct Message {
  int64_t peer = 0;
  at::Tensor tensor;
};

// Messages under way. One that nobody waits for is waited for at the end of its life, its failure unheard;
// while an exception unwinds, it is abandoned: a peer may never answer.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Returns when all messages are through, or, on a device, will be before whatever is queued from now on.
  // However long that takes while the peers live: throws Error(kPeer) that names one that is lost.
  virtual void wait() = 0;
};

// Who posts the other sides of an exchange.
enum class Posting {
  kTogether,  // every rank of the group, as its next one of this kind
  kOneWay     // the peer of the only message
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Connects the ranks for exchanges of this kind (kOneWay: from each rank to the next one, and from the last
  // to the first) of tensors on `device`; does nothing where they need no more than there is. Blocks until
  // the others have come to the same call, so all ranks call it for their groups in one order, before any
  // message is under way: what a device has queued may wait for a rank that waits here. Throws Error(kPeer)
  // when one does not come.
  virtual void connect(at::Device /*device*/, Posting /*posting*/) {}
  // Posts all messages at once and returns without waiting for any. Messages between two ranks arrive in the
  // order in which they were posted. Empty tensors do not travel.
  virtual std::unique_ptr<Exchange> post(std::vector<Message> sends, std::vector<Message> receives,
                                         Posting posting) = 0;
  // Whether tensors on `device` go by collectives of the transport's own, the two below.
  virtual bool has_own_collectives(at::Device /*device*/) const { return false; }
  // x, contiguous, becomes its sum over the group. The transport chooses the order of the terms and rounds
  // each partial sum to the dtype of x; every rank gets the same bits.
  virtual std::unique_ptr<Exchange> post_sum(const at::Tensor& x);
  // `part` of all ranks, of one shape, one after the other in `whole`; both contiguous.
  virtual std::unique_ptr<Exchange> post_gather(const at::Tensor& part, const at::Tensor& whole);
  // Throws as Exchange::wait() does where a peer is known to be lost; does not wait.
  virtual void require_alive() {}
  // Returns when all messages that were waited for have arrived, of all groups: on a device, to wait for a
  // message only queues what follows behind it. Throws as Exchange::wait() does.
  virtual void synchronize() {}
};

// Throws Error(kPeer): "[rank 3] lost: ...", by which whoever watches all ranks knows which one to blame.
[[noreturn]] void lost_peer(int64_t rank, std::string_view why);
// One that gave no sign of life for as long as `timeout`: it is stopped, or its host cannot be reached.
[[noreturn]] void silent_peer(int64_t rank, std::chrono::milliseconds timeout);

// What connects a rank to all others.
class Fabric {
 public:
  virtual ~Fabric() = default;
  // Of the group of these ranks (numbers in the world). Messages of groups with different tags do not mix.
  virtual std::shared_ptr<Transport> transport(std::vector<int64_t> ranks, int64_t tag) = 0;
  // Throws as Exchange::wait() does when another rank has been silent for too long, or has closed its
  // connection: for whoever waits for what does not go through this fabric. From any thread.
  virtual void require_alive() = 0;
  // See World.
  virtual bool abort() { return false; }
  virtual void trim() {}
};

// One collective, as its rank saw it.
struct Collective {
  std::string_view axis;  // of the group: "tp", "ulysses", ...
  std::string_view name;  // "all_reduce", "all_to_all", ...
  int64_t bytes = 0;      // that this rank sends
};

// Sees every operation of a rank: reports, timelines and fault tests hang here. Each may be empty.
struct CollectiveHooks {
  std::function<void(const Collective&)> began;  // when it is posted
  // When it is over: how long it was under way, and how much of that this rank stood waiting.
  std::function<void(const Collective&, std::chrono::nanoseconds under_way, std::chrono::nanoseconds waited)>
      ended;
};

}  // namespace tessera::comm
