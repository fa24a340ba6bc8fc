#include "parallel/rank_threads.h"

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "core/error.h"
#include "parallel/gloo.h"

namespace tessera::parallel {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Where the messages of all ranks meet. As with Gloo, a message moves when both sides have posted it, so
// neither side may touch its tensor before.
class Exchanger {
 public:
  explicit Exchanger(Milliseconds timeout) : timeout_(timeout) {}

  struct Posted {
    int64_t peer;  // in the world
    at::Tensor tensor;
    bool done = false;
  };
  using Line = std::tuple<int64_t, int64_t, int64_t>;  // from, to, tag

  std::shared_ptr<Posted> post(const Line& line, int64_t peer, const at::Tensor& tensor, bool sending) {
    auto own = std::make_shared<Posted>(Posted{peer, tensor});
    const std::lock_guard lock(mutex_);
    std::deque<std::shared_ptr<Posted>>& others = (sending ? receives_ : sends_)[line];
    if (others.empty()) {
      (sending ? sends_ : receives_)[line].push_back(own);
      return own;
    }
    const std::shared_ptr<Posted> other = others.front();
    others.pop_front();
    const at::Tensor &from = (sending ? own : other)->tensor, &to = (sending ? other : own)->tensor;
    TESSERA_CHECK(from.nbytes() == to.nbytes(), "{} bytes were sent, {} expected", from.nbytes(),
                  to.nbytes());
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    own->done = other->done = true;
    changed_.notify_all();
    return own;
  }

  void wait(const Posted& posted) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, timeout_, [&] { return posted.done || broken_; });
    if (posted.done) return;
    throw Error(ErrorKind::kPeer, fmt::format("rank {}", posted.peer),
                came ? "lost: another rank failed" : "lost: no message in time");
  }

  // Nothing more will come.
  void fail() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }

 private:
  Milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool broken_ = false;
  std::map<Line, std::deque<std::shared_ptr<Posted>>> sends_, receives_;
};

class MemoryExchange : public Exchange {
 public:
  MemoryExchange(Exchanger& exchanger, std::vector<std::shared_ptr<Exchanger::Posted>> messages)
      : exchanger_(exchanger), messages_(std::move(messages)) {}
  ~MemoryExchange() override {
    if (std::uncaught_exceptions() > 0) return;
    try {
      finish();
    } catch (const std::exception&) {  // nobody asked
    }
  }
  void wait() override { finish(); }

 private:
  void finish() {
    while (!messages_.empty()) {
      const std::shared_ptr<Exchanger::Posted> message = messages_.back();
      messages_.pop_back();
      exchanger_.wait(*message);
    }
  }

  Exchanger& exchanger_;
  std::vector<std::shared_ptr<Exchanger::Posted>> messages_;
};

class MemoryTransport : public Transport {
 public:
  MemoryTransport(Exchanger& exchanger, int64_t self, std::vector<int64_t> ranks, int64_t tag)
      : exchanger_(exchanger), self_(self), ranks_(std::move(ranks)), tag_(tag) {}

  std::unique_ptr<Exchange> post(std::vector<Message> sends, std::vector<Message> receives) override {
    std::vector<std::shared_ptr<Exchanger::Posted>> messages;
    const auto add = [&](const Message& message, bool sending) {
      TESSERA_CHECK(message.tensor.is_contiguous(), "a message must be contiguous");
      if (message.tensor.numel() == 0) return;
      const int64_t peer = ranks_[static_cast<size_t>(message.peer)];
      const Exchanger::Line line{sending ? self_ : peer, sending ? peer : self_, tag_};
      messages.push_back(exchanger_.post(line, peer, message.tensor, sending));
    };
    for (const Message& message : receives) add(message, /*sending=*/false);
    for (const Message& message : sends) add(message, /*sending=*/true);
    return std::make_unique<MemoryExchange>(exchanger_, std::move(messages));
  }

 private:
  Exchanger& exchanger_;
  int64_t self_;
  std::vector<int64_t> ranks_;
  int64_t tag_;
};

class MemoryFabric : public Fabric {
 public:
  MemoryFabric(Exchanger& exchanger, int64_t self) : exchanger_(exchanger), self_(self) {}
  std::shared_ptr<Transport> transport(std::vector<int64_t> ranks, int64_t tag) override {
    return std::make_shared<MemoryTransport>(exchanger_, self_, std::move(ranks), tag);
  }

 private:
  Exchanger& exchanger_;
  int64_t self_;
};

}  // namespace

void run_ranks_as_threads(int64_t size, const std::function<void(World)>& body, Wire wire,
                          Milliseconds timeout) {
  Exchanger exchanger(timeout);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto connect = [&](int64_t rank) -> std::shared_ptr<Fabric> {
    if (wire == Wire::kMemory) return std::make_shared<MemoryFabric>(exchanger, rank);
    return connect_gloo(store, rank, size, {"lo", true}, timeout);
  };
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::set_num_threads(1);
        body(size == 1 ? World() : World(rank, size, connect(rank)));
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        exchanger.fail();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tessera::parallel
