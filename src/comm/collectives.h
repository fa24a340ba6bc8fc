// Collectives: free functions over a Group. A group of one makes each the identity.
//
// All ranks of a group must call the same functions in the same order. No shape travels: what a rank receives
// follows from what every rank knows. Each throws Error(kPeer) when a peer is lost or late.
//
// All are built on messages between two ranks, which are faster than Gloo's own collectives on large tensors;
// but where the transport has collectives of its own (NCCL), all_reduce, and all_gather of equal parts, are
// those. Sums are taken in the order of the ranks, in fp32, or as the transport does; every rank holds the
// same bits either way.
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

// A collective under way; result() waits for it.
class Pending {
 public:
  Pending() = default;  // over already
  Pending(const Group& group, std::string_view name, std::vector<Message> sends,
          std::vector<Message> receives, Posting posting = Posting::kTogether);
  // A collective of the transport's own, of which this rank sends so many bytes.
  Pending(const Group& group, std::string_view name, int64_t bytes,
          const std::function<std::unique_ptr<Exchange>(Transport&)>& post);
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&&) noexcept = default;

  void wait();

 private:
  std::shared_ptr<CollectiveHooks> hooks_;
  std::string axis_;
  Collective collective_;
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<Exchange> exchange_;
};

// Before the first of any group: makes ready what collectives (kTogether), or messages from each rank to the
// next and from the last to the first (kOneWay), on `device` go through. See Transport::connect().
void connect(const Group& group, at::Device device, Posting posting = Posting::kTogether);

// The sum of `x` over the group. Built on messages it is summed in fp32 whatever its dtype; a transport's own
// rounds each partial sum to it (see Transport::post_sum). One shape and dtype on all ranks. Takes x over:
// its memory is written to when nobody else has it.
at::Tensor all_reduce(at::Tensor x, const Group& group);

// The parts of all ranks along `dim`, in their order; `lengths[r]` is the size of rank r's part.
at::Tensor all_gather(const at::Tensor& part, int64_t dim, std::span<const Range> parts, const Group& group);

// The same in place, along the first dimension: `whole` is contiguous and holds this rank's part already.
void all_gather_into(at::Tensor& whole, std::span<const Range> parts, const Group& group);

// The sum over the group of this rank's range of `x` along `dim`; parts[r] is the range of rank r.
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, std::span<const Range> parts, const Group& group);

// The parts of all ranks on rank `root`: there parts[r] is filled from rank r (the own entry is copied);
// elsewhere `parts` is empty. Contiguous.
void gather(const at::Tensor& part, std::vector<at::Tensor> parts, int64_t root, const Group& group);

// Root's x on every rank: contiguous, of one shape.
void broadcast(at::Tensor& x, int64_t root, const Group& group);

// Sends sends[r] to rank r and fills receives[r] from it; all contiguous. The own entry is copied.
Pending all_to_all(std::vector<at::Tensor> sends, std::vector<at::Tensor> receives, const Group& group);

// Point to point; `peer` is a rank of the group. The tensor is contiguous and stays untouched until waited
// for.
Pending send(const at::Tensor& x, int64_t peer, const Group& group);
Pending receive(at::Tensor& x, int64_t peer, const Group& group);
// Both at once: what a ring does.
Pending send_receive(const at::Tensor& sent, int64_t to, at::Tensor& received, int64_t from,
                     const Group& group);

// Root's bytes on every rank.
std::string broadcast_bytes(const std::string& bytes, int64_t root, const Group& group);

// Returns when every rank has come here.
void barrier(const Group& group);

// Throws Error(kPeer) where a peer is known to be lost; does not wait.
void require_alive(const Group& group);

// Returns when all that was waited for has arrived, in this group and all others: on a device, wait() alone
// does not stop this thread. Any rank may call it at any time.
void synchronize(const Group& group);

}  // namespace tessera::comm
