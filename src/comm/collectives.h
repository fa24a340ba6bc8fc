// Collectives: free functions over a Group. In a group of one, each is the identity.
//
// All ranks of a group must call the same functions in the same order. Shapes are not sent: the size of what
// a rank receives follows from what every rank knows. Each function throws Error(kPeer) if a peer is lost or
// late.
//
// All are built on messages between two ranks, which are faster than Gloo's own collectives on large tensors.
// Where the transport has its own collectives (NCCL), all_reduce and the all_gather of equal parts use those.
// Sums are computed in the order of the ranks, in fp32, or by the transport; either way, every rank gets the
// same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/transport.h"

namespace tessera::comm {

// A collective in progress; wait() returns when it is complete.
class Pending {
 public:
  Pending() = default;  // complete already
  Pending(const Group& group, std::string_view name, std::vector<Message> sends,
          std::vector<Message> receives, Posting posting = Posting::kTogether);
  // A collective of the transport itself; this rank sends `bytes` in it.
  Pending(const Group& group, std::string_view name, int64_t bytes,
          const std::function<std::unique_ptr<Exchange>(Transport&)>& post);
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&&) noexcept = default;

  void wait();

 private:
  void tell_of_begin(std::span<const Message> sends, std::span<const Message> receives,
                     std::span<const int64_t> ranks);

  std::shared_ptr<CollectiveHooks> hooks_;
  std::string axis_;
  Collective collective_;
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<Exchange> exchange_;
};

// Prepares the group for its first collectives (kTogether), or for messages from each rank to the next and
// from the last to the first (kOneWay), with tensors on `device`. See Transport::connect().
void connect(const Group& group, at::Device device, Posting posting = Posting::kTogether);

// Returns the sum of `x` over the group; shape and dtype must be the same on all ranks. A sum built on
// messages is computed in fp32 whatever the dtype; a transport's own collective rounds each partial sum to
// the dtype (see Transport::post_sum). Overwrites the memory of `x` if nothing else refers to it.
at::Tensor all_reduce(at::Tensor x, const Group& group);

// Concatenates the parts of all ranks along `dim`; parts[r] is the range of rank r in the result.
at::Tensor all_gather(const at::Tensor& part, int64_t dim, std::span<const Range> parts, const Group& group);

// Does the same in place, along the first dimension: `whole` is contiguous and already holds this rank's
// part.
void all_gather_into(at::Tensor& whole, std::span<const Range> parts, const Group& group);

// Returns the sum over the group of this rank's range of `x` along `dim`; parts[r] is the range of rank r.
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, std::span<const Range> parts, const Group& group);

// Gathers the parts of all ranks on rank `root`: there parts[r] is filled from rank r, the root's own part by
// a copy; elsewhere `parts` is empty. All tensors are contiguous.
void gather(const at::Tensor& part, std::vector<at::Tensor> parts, int64_t root, const Group& group);

// Concatenates the parts of all ranks along `dim` on rank `root`; parts[r] is the range of rank r in the
// result. On the other ranks the result is undefined.
at::Tensor gather(const at::Tensor& part, int64_t dim, std::span<const Range> parts, int64_t root,
                  const Group& group);

// Copies the root's `x` to every rank. On the others `x` is contiguous and has the root's shape.
void broadcast(at::Tensor& x, int64_t root, const Group& group);

// Sends sends[r] to rank r and fills receives[r] from rank r; all tensors are contiguous. The entry of this
// rank itself is copied.
Pending all_to_all(std::vector<at::Tensor> sends, std::vector<at::Tensor> receives, const Group& group);

// Point-to-point messages; `peer` is a rank of the group. The tensor is contiguous and must not be touched
// until the message has been waited for.
Pending send(const at::Tensor& x, int64_t peer, const Group& group);
Pending receive(at::Tensor& x, int64_t peer, const Group& group);
// Sends and receives at the same time, as in a ring.
Pending send_receive(const at::Tensor& sent, int64_t to, at::Tensor& received, int64_t from,
                     const Group& group);

// Returns the bytes of all ranks on the root, and nothing on other ranks. There is no limit on their number,
// because they are sent in pieces.
std::vector<std::string> gather_bytes(const std::string& bytes, int64_t root, const Group& group);
// Returns the root's bytes, at most 256 MiB, on every rank.
std::string broadcast_bytes(const std::string& bytes, int64_t root, const Group& group);

// Returns when every rank has called it.
void barrier(const Group& group);

// Throws Error(kPeer) if a peer is known to be lost; does not wait.
void require_alive(const Group& group);

// Returns when all messages that were waited for have arrived, in all groups: on a device, wait() by itself
// does not block this thread. Any rank may call it at any time.
void synchronize(const Group& group);

}  // namespace tessera::comm
