#include "comm/device_fabric.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "comm/collectives.h"
#include "comm/world.h"
#include "core/error.h"
#include "tests/support/ordered_communicators.h"

namespace tessera::comm {
namespace {

constexpr auto kTimeout = std::chrono::seconds(20);

// Behaves like a GPU's work: wait() returns at once, and isCompleted() later tells whether it has finished.
class QueuedWork : public c10d::Work {
 public:
  explicit QueuedWork(std::optional<std::string> failure) : failure_(std::move(failure)) {}
  bool isCompleted() override { return failure_.has_value(); }
  std::exception_ptr exception() const override {
    return failure_ ? std::make_exception_ptr(std::runtime_error(*failure_)) : nullptr;
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }

 private:
  std::optional<std::string> failure_;
};

// A communicator whose operations never finish, or fail.
class DeafCommunicator : public c10d::Backend {
 public:
  explicit DeafCommunicator(std::optional<std::string> failure)
      : Backend(0, 2), failure_(std::move(failure)) {}
  const std::string getBackendName() const override { return "deaf"; }
  void startCoalescing() override {}
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    return c10::make_intrusive<QueuedWork>(failure_);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int, int) override { return nullptr; }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int, int) override { return nullptr; }

 private:
  std::optional<std::string> failure_;
};

// A fabric in which rank 3 becomes silent a moment after the first query.
class SilentFabric : public Fabric {
 public:
  std::shared_ptr<Transport> transport(std::vector<int64_t>, int64_t) override { return nullptr; }
  void require_alive() override {
    if (++asked_ == 3) silent_peer(3, std::chrono::milliseconds(1500));
  }

 private:
  std::atomic<int> asked_ = 0;
};

std::optional<std::string> error_of_settling(const std::optional<std::string>& failure) {
  const auto make = [&](const std::string&, int, int, at::Device) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<DeafCommunicator>(failure));
  };
  World world(0, 4, connect_devices(0, at::kCPU, make, std::make_shared<SilentFabric>()));
  const Group group = world.group({0, 3}, "test");
  connect(group, at::kCPU, Posting::kOneWay);
  at::Tensor x = at::empty({4});
  try {
    receive(x, 1, group).wait();
    synchronize(group);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeer);
    return error.what();
  }
  return std::nullopt;
}

TEST(DeviceFabricOfRanks, WhatNeverArrivesFromTheDeadIsALostPeer) {
  EXPECT_EQ(error_of_settling(std::nullopt), "[rank 3] lost: no sign of life within 1.5 s");
}

TEST(DeviceFabricOfRanks, WhatFailsOnTheDeviceIsALostPeer) {
  EXPECT_EQ(error_of_settling("remote process exited\n#0 frame"), "[rank 3] lost: remote process exited");
}

// A device that waits for a peer, and lets everyone who waits for the device wait as well, until it is
// aborted.
class Stuck {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, kTimeout, [this] { return is_aborted_; });
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    ended_.notify_all();
  }
  bool is_aborted() {
    const std::lock_guard lock(mutex_);
    return is_aborted_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_aborted_ = false;
};

class StuckCommunicator : public DeafCommunicator {
 public:
  StuckCommunicator(Stuck& device, bool host_waits)
      : DeafCommunicator(std::nullopt), device_(device), host_waits_(host_waits) {}
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    if (host_waits_) return c10::make_intrusive<StuckWork>(device_);
    return DeafCommunicator::endCoalescing();
  }
  void abort() override { device_.abort(); }

 private:
  struct StuckWork : c10d::Work {
    explicit StuckWork(Stuck& stuck) : device(stuck) {}
    bool isCompleted() override { return device.is_aborted(); }
    bool wait(std::chrono::milliseconds /*timeout*/) override {
      device.wait();
      return true;  // as after ncclCommAbort the operation has ended, and its data is undefined
    }
    Stuck& device;
  };
  Stuck& device_;
  bool host_waits_;
};

// The host waits either for the message or for a copy from the device, which does not check for lost peers.
TEST(DeviceFabricOfRanks, ALostPeerEndsWhatTheDeviceWaitsFor) {
  for (const bool in_message : {true, false}) {
    Stuck device;
    const auto make = [&](const std::string&, int, int, at::Device) {
      return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<StuckCommunicator>(device, in_message));
    };
    World world(0, 4, connect_devices(0, at::kCPU, make, std::make_shared<SilentFabric>()));
    const Group group = world.group({0, 3}, "test");
    connect(group, at::kCPU, Posting::kOneWay);
    at::Tensor x = at::empty({4});
    const auto start = std::chrono::steady_clock::now();
    try {
      receive(x, 1, group).wait();
      if (!in_message) device.wait();
      require_alive(group);
      ADD_FAILURE() << "nobody was lost";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "[rank 3] lost: no sign of life within 1.5 s");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout);
    EXPECT_THROW(send(x, 1, group), Error);  // every later operation fails
    EXPECT_THROW(synchronize(group), Error);
  }
}

// A fabric whose other ranks live.
class LivingFabric : public Fabric {
 public:
  std::shared_ptr<Transport> transport(std::vector<int64_t>, int64_t) override { return nullptr; }
  void require_alive() override {}
};

// Otherwise the thread that watches the other ranks would keep the program from ending.
TEST(DeviceFabricOfRanks, NobodyIsWatchedAfterTheEnd) {
  const auto make = [](const std::string&, int, int, at::Device) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<DeafCommunicator>(std::nullopt));
  };
  const auto host = std::make_shared<LivingFabric>();
  {
    World world(0, 2, connect_devices(0, at::kCPU, make, host));
    const Group group = world.group({0, 1}, "test");
    connect(group, at::kCPU, Posting::kOneWay);
    at::Tensor x = at::empty({4});
    receive(x, 1, group).wait();
  }
  EXPECT_EQ(host.use_count(), 1);
}

TEST(DeviceFabricOfRanks, TensorsOfTheHostTakeItsWay) {
  OrderedCommunicators host(kTimeout);
  const auto body = [&](int64_t rank) {
    const auto refuse = [](const std::string&, int, int, at::Device) -> c10::intrusive_ptr<c10d::Backend> {
      throw std::logic_error("no device is needed");
    };
    const auto hosts = connect_devices(rank, at::kCPU, host.maker(), nullptr);
    World world(rank, 2, connect_devices(rank, at::kCUDA, refuse, hosts));
    const Group group = world.group({0, 1}, "test");
    connect(group, at::kCPU);
    EXPECT_EQ(all_reduce(at::ones({3}), group).sum().item<double>(), 6.0);
  };
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

// Runs `body` on threads, once for each rank; returns the messages of the ranks that failed.
std::vector<std::string> errors_of_ranks(int64_t size, const std::function<void(int64_t)>& body) {
  std::vector<std::string> errors;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        errors.emplace_back(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// All ranks of a pipeline are connected with their neighbours, however many there are, and no connection is
// made twice.
TEST(DeviceFabricOfRanks, ConnectsNeighboursInOneOrder) {
  for (const int64_t size : {2, 3, 4, 5, 8}) {
    OrderedCommunicators ordered(kTimeout);
    std::atomic<int> made = 0;
    const auto counted = [&, make = ordered.maker()](const std::string& name, int rank, int of,
                                                     at::Device device) {
      ++made;
      return make(name, rank, of, device);
    };
    std::vector<int64_t> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    const auto errors = errors_of_ranks(size, [&](int64_t rank) {
      World world(rank, size, connect_devices(rank, at::kCPU, counted, nullptr));
      const Group group = world.group(all, "pp");
      for (int times = 0; times < 2; ++times) connect(group, at::kCPU, Posting::kOneWay);
      at::Tensor x = at::empty({1});
      Pending arriving = receive(x, (rank + size - 1) % size, group);
      send(at::full({1}, static_cast<double>(rank)), (rank + 1) % size, group).wait();
      arriving.wait();
      EXPECT_EQ(x.item<int64_t>(), (rank + size - 1) % size);
    });
    EXPECT_EQ(errors, std::vector<std::string>());
    EXPECT_EQ(made, 2 * size);
  }
}

// A connection that fails leaves nothing behind, so the next call makes it.
TEST(DeviceFabricOfRanks, AFailedConnectionLeavesNone) {
  OrderedCommunicators ordered(kTimeout);
  bool fails = true;
  const auto make = [&, all = ordered.maker()](const std::string& name, int rank, int, at::Device device) {
    if (fails) throw Error(ErrorKind::kPeer, name, "no other rank came");
    return all(name, rank, 1, device);
  };
  World world(0, 2, connect_devices(0, at::kCPU, make, nullptr));
  const Group group = world.group({0, 1}, "test");
  at::Tensor x = at::empty({4});
  EXPECT_THROW(connect(group, at::kCPU, Posting::kTogether), Error);
  EXPECT_THROW(send_receive(x, 1, x, 1, group), std::logic_error);
  fails = false;
  connect(group, at::kCPU, Posting::kTogether);
  EXPECT_NO_THROW(all_reduce(x, group));
}

// Fails to connect the first time.
class LateFabric : public Fabric {
 public:
  std::shared_ptr<Transport> transport(std::vector<int64_t>, int64_t tag) override {
    tags.push_back(tag);
    if (tags.size() == 1) throw Error(ErrorKind::kPeer, "late", "not yet");
    return std::make_shared<NoTransport>();
  }
  void require_alive() override {}

  std::vector<int64_t> tags;

 private:
  struct NoTransport : Transport {
    std::unique_ptr<Exchange> post(std::vector<Message>, std::vector<Message>, Posting) override {
      return nullptr;
    }
  };
};

// Otherwise the next caller would get a group of one rank.
TEST(World, AGroupThatCouldNotBeMadeIsMadeLater) {
  const auto fabric = std::make_shared<LateFabric>();
  World world(0, 2, fabric);
  EXPECT_THROW(world.group({0, 1}, "test"), Error);
  const Group group = world.group({0, 1}, "test");
  EXPECT_EQ(group.size, 2);
  EXPECT_NE(group.transport, nullptr);
  EXPECT_EQ(fabric->tags, (std::vector<int64_t>{1, 1}));
}

// A message makes no connection, because its rank would wait for a peer that is about to post another
// message.
TEST(DeviceFabricOfRanks, AMessageMakesNoConnection) {
  OrderedCommunicators ordered(kTimeout);
  World world(0, 2, connect_devices(0, at::kCPU, ordered.maker(), nullptr));
  const Group group = world.group({0, 1}, "test");
  at::Tensor x = at::empty({4});
  EXPECT_THROW(receive(x, 1, group), std::logic_error);
  EXPECT_THROW(send_receive(x, 1, x, 1, group), std::logic_error);
}

// The stand-in for NCCL detects what would be a deadlock there: the first stage begins with the connection
// from the last one, and that with the connection from the first, as if the first message made it.
TEST(CommunicatorsOfRanks, AskedForInTwoOrdersTheyAreNeverMade) {
  OrderedCommunicators ordered(std::chrono::milliseconds(300));
  const auto errors = errors_of_ranks(2, [&](int64_t rank) {
    const int self = static_cast<int>(rank);
    ordered.maker()(rank == 0 ? "1 to 0" : "0 to 1", 1, 2, at::kCPU);
    ordered.maker()(rank == 0 ? "0 to 1" : "1 to 0", self, 2, at::kCPU);
  });
  EXPECT_EQ(errors.size(), 2U);
  for (const std::string& error : errors) EXPECT_NE(error.find("1 of 2 ranks came"), error.npos) << error;
}

// Here the deadlock is that both ranks send first, on one communicator.
TEST(CommunicatorsOfRanks, MessagesWaitForTheirTurn) {
  OrderedCommunicators ordered(kTimeout);
  std::vector<c10::intrusive_ptr<c10d::Backend>> ranks(2);
  const auto errors = errors_of_ranks(2, [&](int64_t rank) {
    ranks[static_cast<size_t>(rank)] = ordered.maker()("one", static_cast<int>(rank), 2, at::kCPU);
  });
  EXPECT_EQ(errors, std::vector<std::string>());
  std::vector<at::Tensor> tensors = {at::ones({2})};
  const auto post = [&](int rank, bool sending) {
    c10d::Backend& own = *ranks[static_cast<size_t>(rank)];
    own.startCoalescing();
    sending ? own.send(tensors, 1 - rank, 0) : own.recv(tensors, 1 - rank, 0);
    return own.endCoalescing();
  };
  const auto first = post(0, true), second = post(1, true), third = post(0, false), fourth = post(1, false);
  for (const auto& work : {first, second, third, fourth}) EXPECT_FALSE(work->isCompleted());
}

}  // namespace
}  // namespace tessera::comm
