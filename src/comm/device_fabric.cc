#include "comm/device_fabric.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A thread that waits for devices polls them at this interval.
constexpr auto kLook = std::chrono::microseconds(20);
// The other ranks are checked for life at this interval.
constexpr auto kCheck = Milliseconds(20);

[[noreturn]] void lost(int64_t peer, const std::exception& error) {
  const auto* const from_c10 = dynamic_cast<const c10::Error*>(&error);
  const std::string_view what = from_c10 ? from_c10->what_without_backtrace() : error.what();
  lost_peer(peer, what.substr(0, what.find('\n')));
}

// An operation of a communicator. Any peer may be the missing one; errors name the first.
struct Operating {
  int64_t peer;  // in the world
  c10::intrusive_ptr<c10d::Work> work;
};

// Holds the operations that were posted and may not be complete, and the thread that watches the peers.
class UnderWay {
 public:
  // `host` connects the same ranks and detects lost ones.
  explicit UnderWay(std::shared_ptr<Fabric> host) : host_(std::move(host)) {}
  ~UnderWay() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  void add(c10::intrusive_ptr<c10d::Backend> communicator) {
    const std::lock_guard lock(mutex_);
    communicators_.push_back(std::move(communicator));
    if (host_ && !thread_.joinable()) thread_ = std::thread([this] { look_after_peers(); });
  }
  void posted(Operating operating) {
    const std::lock_guard lock(mutex_);
    operations_.push_back(std::move(operating));
  }

  void require_alive() {
    const std::lock_guard lock(mutex_);
    if (lost_) std::rethrow_exception(lost_);
  }

  // Throws for a failed operation, naming a lost peer as the cause if one is known.
  [[noreturn]] void failed(int64_t peer, const std::exception& error) {
    require_alive();
    lost(peer, error);
  }

  void synchronize() {
    while (true) {
      require_alive();
      std::optional<Operating> first;
      {
        const std::lock_guard lock(mutex_);
        if (operations_.empty()) return;
        first = operations_.front();
      }
      try {
        if (first->work->isCompleted()) {
          if (const std::exception_ptr failure = first->work->exception()) std::rethrow_exception(failure);
          const std::lock_guard lock(mutex_);
          if (!operations_.empty() && operations_.front().work == first->work) operations_.pop_front();
          continue;
        }
      } catch (const std::exception& error) {
        failed(first->peer, error);
      }
      std::this_thread::sleep_for(kLook);
    }
  }

 private:
  void look_after_peers() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kCheck, [this] { return ends_; })) {
      drop_completed();
      if (operations_.empty()) continue;
      try {
        host_->require_alive();
      } catch (const std::exception&) {
        lost_ = std::current_exception();
        const auto communicators = communicators_;
        lock.unlock();
        for (const auto& communicator : communicators) abort(*communicator);
        return;
      }
    }
  }

  // Keeps a failed operation for the thread that waits for it.
  void drop_completed() {
    try {
      while (!operations_.empty() && operations_.front().work->isCompleted() &&
             !operations_.front().work->exception())
        operations_.pop_front();
    } catch (const std::exception&) {  // kept, as above
    }
  }

  static void abort(c10d::Backend& communicator) {
    try {
      communicator.abort();
    } catch (const std::exception&) {  // the run ends in any case
    }
  }

  std::shared_ptr<Fabric> host_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::exception_ptr lost_;
  std::vector<c10::intrusive_ptr<c10d::Backend>> communicators_;
  std::deque<Operating> operations_;  // in the order of posting
  std::thread thread_;
};

class DeviceExchange : public Exchange {
 public:
  DeviceExchange(std::optional<Operating> operating, std::shared_ptr<UnderWay> under_way)
      : operating_(std::move(operating)), under_way_(std::move(under_way)) {}

  ~DeviceExchange() override {
    if (!operating_) return;
    if (std::uncaught_exceptions() > 0) {
      // The peers may never answer. The work is leaked on purpose, to keep the memory that it reads and
      // writes alive.
      (void)operating_->work.release();
      return;
    }
    try {
      finish();
    } catch (const std::exception&) {  // nobody waits for the result
    }
  }

  void wait() override { finish(); }

 private:
  void finish() {
    if (!operating_) return;
    const Operating operating = *std::exchange(operating_, std::nullopt);
    try {
      operating.work->wait();
    } catch (const std::exception& error) {
      under_way_->failed(operating.peer, error);
    }
    under_way_->require_alive();
  }

  std::optional<Operating> operating_;
  std::shared_ptr<UnderWay> under_way_;
};

class DeviceTransport : public Transport {
 public:
  DeviceTransport(int64_t rank, std::vector<int64_t> ranks, std::string name, at::DeviceType type,
                  MakeCommunicator make, std::shared_ptr<Transport> host, std::shared_ptr<UnderWay> under_way)
      : rank_(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()),
        ranks_(std::move(ranks)),
        name_(std::move(name)),
        type_(type),
        make_(std::move(make)),
        host_(std::move(host)),
        under_way_(std::move(under_way)) {}

  void connect(at::Device device, Posting posting) override {
    if (device.type() != type_) {
      if (host_) host_->connect(device, posting);
      return;
    }
    const auto size = static_cast<int64_t>(ranks_.size());
    if (posting == Posting::kTogether) {
      make(name_, rank_, size, device);
      return;
    }
    // A rank has two neighbours. All ranks connect to theirs in the same order, so that ranks do not wait for
    // each other in a circle. Every second pair comes first, so that the others need not wait for all
    // preceding pairs.
    for (const int64_t first : {0, 1}) {
      for (int64_t from = first; from < size; from += 2) {
        const int64_t to = (from + 1) % size;
        if (from == rank_ || to == rank_) make(way(from, to), from == rank_ ? 0 : 1, 2, device);
      }
    }
  }

  std::unique_ptr<Exchange> post(std::vector<Message> sends, std::vector<Message> receives,
                                 Posting posting) override {
    TESSERA_CHECK(!sends.empty() || !receives.empty(), "an exchange without messages");
    const Message& any = sends.empty() ? receives.front() : sends.front();
    if (any.tensor.device().type() != type_)
      return host_->post(std::move(sends), std::move(receives), posting);
    if (posting == Posting::kTogether)
      return run(communicator(name_), sends, receives, [](int64_t peer) { return static_cast<int>(peer); });
    TESSERA_CHECK(sends.size() + receives.size() == 1, "{} messages one way", sends.size() + receives.size());
    if (any.tensor.numel() == 0) return std::make_unique<DeviceExchange>(std::nullopt, under_way_);
    const bool sending = !sends.empty();
    const auto [from, to] = sending ? std::pair(rank_, any.peer) : std::pair(any.peer, rank_);
    return run(communicator(way(from, to)), sends, receives, [sending](int64_t) { return sending ? 1 : 0; });
  }

  bool has_own_collectives(at::Device device) const override { return device.type() == type_; }
  std::unique_ptr<Exchange> post_sum(const at::Tensor& x) override {
    std::vector<at::Tensor> tensors = {x};
    return start([&](c10d::Backend& all) { return all.allreduce(tensors); });
  }
  std::unique_ptr<Exchange> post_gather(const at::Tensor& part, const at::Tensor& whole) override {
    at::Tensor from = part, to = whole;
    return start([&](c10d::Backend& all) { return all._allgather_base(to, from); });
  }

  void require_alive() override { under_way_->require_alive(); }
  void synchronize() override { under_way_->synchronize(); }

 private:
  using Communicator = c10::intrusive_ptr<c10d::Backend>;

  std::string way(int64_t from, int64_t to) const { return fmt::format("{}, {} to {}", name_, from, to); }

  void make(const std::string& name, int64_t rank, int64_t size, at::Device device) {
    if (communicators_.contains(name)) return;
    const Communicator made = make_(name, static_cast<int>(rank), static_cast<int>(size), device);
    under_way_->add(made);
    communicators_.emplace(name, made);
  }

  c10d::Backend& communicator(const std::string& name) const {
    const auto made = communicators_.find(name);
    TESSERA_CHECK(made != communicators_.end(), "no communicator '{}': the group was not connected", name);
    return *made->second;
  }

  int64_t in_world(int64_t peer) const { return ranks_[static_cast<size_t>(peer)]; }

  // Any other rank may be the missing one; errors name the next rank.
  template <typename Collective>
  std::unique_ptr<Exchange> start(const Collective& collective) {
    const int64_t next = in_world((rank_ + 1) % static_cast<int64_t>(ranks_.size()));
    try {
      return posted({next, collective(communicator(name_))});
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      under_way_->failed(next, error);
    }
  }

  std::unique_ptr<Exchange> posted(Operating operating) {
    under_way_->require_alive();
    under_way_->posted(operating);
    return std::make_unique<DeviceExchange>(std::move(operating), under_way_);
  }

  // `place` maps a peer of the group to its rank in the communicator.
  template <typename Place>
  std::unique_ptr<Exchange> run(c10d::Backend& communicator, const std::vector<Message>& sends,
                                const std::vector<Message>& receives, const Place& place) {
    std::optional<int64_t> first;  // the first peer
    int64_t peer = 0;
    try {
      const auto add = [&](const Message& message, bool sending) {
        TESSERA_CHECK(message.tensor.is_contiguous(), "a message must be contiguous");
        if (message.tensor.numel() == 0) return;
        peer = message.peer;
        if (!first) communicator.startCoalescing();
        first = first.value_or(peer);
        std::vector<at::Tensor> tensors = {message.tensor};
        sending ? communicator.send(tensors, place(peer), 0) : communicator.recv(tensors, place(peer), 0);
      };
      for (const Message& message : receives) add(message, /*sending=*/false);
      for (const Message& message : sends) add(message, /*sending=*/true);
      if (!first) return std::make_unique<DeviceExchange>(std::nullopt, under_way_);
      return posted({in_world(*first), communicator.endCoalescing()});
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      under_way_->failed(in_world(peer), error);
    }
  }

  int64_t rank_;  // in the group
  std::vector<int64_t> ranks_;
  std::string name_;
  at::DeviceType type_;
  MakeCommunicator make_;
  std::shared_ptr<Transport> host_;
  std::shared_ptr<UnderWay> under_way_;
  std::map<std::string, Communicator> communicators_;
};

class DeviceFabric : public Fabric {
 public:
  DeviceFabric(int64_t rank, at::DeviceType type, MakeCommunicator make, std::shared_ptr<Fabric> host)
      : rank_(rank),
        type_(type),
        make_(std::move(make)),
        host_(std::move(host)),
        under_way_(std::make_shared<UnderWay>(host_)) {}

  std::shared_ptr<Transport> transport(std::vector<int64_t> ranks, int64_t tag) override {
    std::shared_ptr<Transport> host = host_ ? host_->transport(ranks, tag) : nullptr;
    return std::make_shared<DeviceTransport>(rank_, std::move(ranks), fmt::format("group {}", tag), type_,
                                             make_, std::move(host), under_way_);
  }
  void require_alive() override {
    if (host_) host_->require_alive();
  }

 private:
  int64_t rank_;
  at::DeviceType type_;
  MakeCommunicator make_;
  std::shared_ptr<Fabric> host_;
  std::shared_ptr<UnderWay> under_way_;
};

}  // namespace

std::shared_ptr<Fabric> connect_devices(int64_t rank, at::DeviceType type, MakeCommunicator make,
                                        std::shared_ptr<Fabric> host) {
  return std::make_shared<DeviceFabric>(rank, type, std::move(make), std::move(host));
}

}  // namespace tessera::comm
