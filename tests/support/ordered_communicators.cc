#include "tests/support/ordered_communicators.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "tests/support/strict_device.h"

namespace tessera::comm {

class OrderedCommunicators::Shared {
 public:
  explicit Shared(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  struct Side {
    int peer;
    bool sending;
    at::Tensor tensor;
    bool moved = false;
  };
  struct Operation {
    std::vector<Side> sides;
    std::function<void()> finish = {};  // called when all sides have moved
    bool done = false;
  };

  // Returns when all ranks of the communicator have called it.
  void meet(const std::string& name, int size) {
    std::unique_lock lock(mutex_);
    int& came = came_[name];
    ++came;
    changed_.notify_all();
    changed_.wait_for(lock, timeout_, [&] { return came == size || broken_; });
    if (came != size) throw Error(ErrorKind::kPeer, name, fmt::format("{} of {} ranks came", came, size));
  }

  void post(const std::string& name, int rank, int size, const std::shared_ptr<Operation>& operation) {
    const std::lock_guard lock(mutex_);
    std::vector<Queue>& queues = communicators_[name];
    queues.resize(static_cast<size_t>(size));
    queues[static_cast<size_t>(rank)].push_back(operation);
    while (advance(queues)) changed_.notify_all();
  }

  bool is_done(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    return operation.done;
  }

  void wait(const Operation& operation) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, timeout_, [&] { return operation.done || broken_; });
    if (!operation.done) throw std::runtime_error(came ? "another rank failed" : "no message in time");
  }

  void fail() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }

 private:
  using Queue = std::deque<std::shared_ptr<Operation>>;

  // Moves the messages for which both sides are ready. Returns whether an operation ended.
  static bool advance(std::vector<Queue>& queues) {
    for (size_t rank = 0; rank < queues.size(); ++rank) {
      if (queues[rank].empty()) continue;
      Operation& own = *queues[rank].front();
      for (Side& side : own.sides) {
        Queue& peers = queues[static_cast<size_t>(side.peer)];
        if (!side.moved && !peers.empty()) match(side, static_cast<int>(rank), *peers.front());
      }
    }
    bool ended = false;
    for (Queue& queue : queues) {
      if (queue.empty()) continue;
      bool all = true;
      for (const Side& side : queue.front()->sides) all = all && side.moved;
      if (!all) continue;
      if (queue.front()->finish) queue.front()->finish();
      queue.front()->done = ended = true;
      queue.pop_front();
    }
    return ended;
  }

  static void match(Side& own, int rank, Operation& peer) {
    for (Side& other : peer.sides) {
      if (other.moved || other.peer != rank || other.sending == own.sending) continue;
      const at::Tensor &from = own.sending ? own.tensor : other.tensor,
                       &to = own.sending ? other.tensor : own.tensor;
      TESSERA_CHECK(from.nbytes() == to.nbytes(), "{} bytes were sent, {} expected", from.nbytes(),
                    to.nbytes());
      std::memcpy(strict_as_host(to).mutable_data_ptr(), strict_as_host(from).const_data_ptr(),
                  from.nbytes());
      own.moved = other.moved = true;
      return;
    }
  }

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool broken_ = false;
  std::map<std::string, int> came_;
  std::map<std::string, std::vector<Queue>> communicators_;
};

namespace {

using Shared = OrderedCommunicators::Shared;

// Has this thread's allocations on the strict device wait until `operation` has ended.
void before_allocations(const std::shared_ptr<Shared>& shared, std::shared_ptr<Shared::Operation> operation) {
  if (operation->sides.empty() || operation->sides.front().tensor.device().type() != kStrict) return;
  thread_local std::vector<std::shared_ptr<Shared::Operation>> posted;
  posted.push_back(std::move(operation));
  before_strict_allocations([shared] {
    for (const auto& each : posted) shared->wait(*each);
    posted.clear();
  });
}

class OrderedWork : public c10d::Work {
 public:
  OrderedWork(std::shared_ptr<Shared> shared, std::shared_ptr<Shared::Operation> operation)
      : shared_(std::move(shared)), operation_(std::move(operation)) {}

  bool isCompleted() override { return shared_->is_done(*operation_); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    shared_->wait(*operation_);
    return true;
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Shared::Operation> operation_;
};

class OrderedCommunicator : public c10d::Backend {
 public:
  OrderedCommunicator(std::shared_ptr<Shared> shared, std::string name, int rank, int size)
      : Backend(rank, size), shared_(std::move(shared)), name_(std::move(name)) {}

  const std::string getBackendName() const override { return "ordered"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { operation_ = std::make_shared<Shared::Operation>(); }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    shared_->post(name_, getRank(), getSize(), operation_);
    before_allocations(shared_, operation_);
    return c10::make_intrusive<OrderedWork>(shared_, std::move(operation_));
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int /*tag*/) override {
    return add(tensors, peer, /*sending=*/true);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int /*tag*/) override {
    return add(tensors, peer, /*sending=*/false);
  }
  // Adds in the order of the ranks and rounds every partial sum to the dtype. NCCL rounds too, but adds in
  // another order.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    const at::Tensor x = tensors.at(0);
    const at::Tensor terms = at::empty({getSize(), x.numel()}, strict_as_host(x).options());
    return gather_all(terms, x, [terms, x] {
      at::Tensor sum = terms[0];
      for (int64_t i = 1; i < terms.size(0); ++i) sum = sum + terms[i];
      std::memcpy(strict_as_host(x).mutable_data_ptr(), sum.const_data_ptr(), sum.nbytes());
    });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& whole, at::Tensor& part,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    return gather_all(strict_as_host(whole).view({getSize(), -1}), part, [keep = whole] {});
  }

 private:
  // Gathers all ranks' parts into the rows of `rows`, a host tensor, and then calls `finish`.
  c10::intrusive_ptr<c10d::Work> gather_all(const at::Tensor& rows, const at::Tensor& part,
                                            std::function<void()> finish) {
    const auto operation = std::make_shared<Shared::Operation>();
    for (int peer = 0; peer < getSize(); ++peer) {
      if (peer == getRank()) continue;
      operation->sides.push_back({peer, /*sending=*/true, part});
      operation->sides.push_back({peer, /*sending=*/false, rows[peer]});
    }
    std::memcpy(rows[getRank()].mutable_data_ptr(), strict_as_host(part).const_data_ptr(), part.nbytes());
    operation->finish = std::move(finish);
    shared_->post(name_, getRank(), getSize(), operation);
    return c10::make_intrusive<OrderedWork>(shared_, operation);
  }

  c10::intrusive_ptr<c10d::Work> add(const std::vector<at::Tensor>& tensors, int peer, bool sending) {
    TESSERA_CHECK(operation_ && tensors.size() == 1, "a message outside of an operation");
    operation_->sides.push_back({peer, sending, tensors[0]});
    return nullptr;
  }

  std::shared_ptr<Shared> shared_;
  std::string name_;
  std::shared_ptr<Shared::Operation> operation_;
};

}  // namespace

OrderedCommunicators::OrderedCommunicators(std::chrono::milliseconds timeout)
    : shared_(std::make_shared<Shared>(timeout)) {}

OrderedCommunicators::~OrderedCommunicators() = default;

MakeCommunicator OrderedCommunicators::maker() {
  return [shared = shared_](const std::string& name, int rank, int size, at::Device /*device*/) {
    shared->meet(name, size);
    return c10::intrusive_ptr<c10d::Backend>(
        c10::make_intrusive<OrderedCommunicator>(shared, name, rank, size));
  };
}

void OrderedCommunicators::fail() {
  shared_->fail();
}

}  // namespace tessera::comm
