#include "tests/support/rank_threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <mutex>
#include <thread>

#include "comm/device_fabric.h"
#include "comm/gloo.h"
#include "comm/shared_memory.h"
#include "tests/support/ordered_communicators.h"
#include "tests/support/strict_device.h"

namespace tessera::comm {
namespace {

// Takes all tensors, including those of the host, for tensors of the device, so every group is connected when
// it is made.
class OrderedFabric : public Fabric {
 public:
  OrderedFabric(int64_t rank, MakeCommunicator make)
      : devices_(connect_devices(rank, at::kCPU, std::move(make), nullptr)) {}
  std::shared_ptr<Transport> transport(std::vector<int64_t> ranks, int64_t tag) override {
    auto transport = devices_->transport(std::move(ranks), tag);
    transport->connect(at::kCPU, Posting::kTogether);
    return transport;
  }
  void require_alive() override { devices_->require_alive(); }

 private:
  std::shared_ptr<Fabric> devices_;
};

}  // namespace

void run_ranks_as_threads(int64_t size, const std::function<void(World)>& body, Wire wire,
                          std::chrono::milliseconds timeout) {
  OrderedCommunicators communicators(timeout);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const bool shared = wire == Wire::kShared || wire == Wire::kHosts;
  const std::vector<LocalEndpoint> endpoints(shared ? static_cast<size_t>(size) : 0);
  std::vector<std::string> places;
  for (const LocalEndpoint& endpoint : endpoints) {
    const bool on_second = wire == Wire::kHosts && places.size() % 2 == 1;
    places.push_back((on_second ? "second " : "") + endpoint.text());
  }
  const auto connect = [&](int64_t rank) -> std::shared_ptr<Fabric> {
    if (wire == Wire::kOrdered) return std::make_shared<OrderedFabric>(rank, communicators.maker());
    std::shared_ptr<Fabric> fabric;
    if (wire != Wire::kShared) fabric = connect_gloo(store, rank, size, {"lo", true}, timeout);
    if (wire == Wire::kStrict) return connect_devices(rank, kStrict, communicators.maker(), fabric);
    if (!shared) return fabric;
    const auto connect_peers = [&](const FileForPeer& file_for) {
      return connect_local_peers(rank, endpoints[static_cast<size_t>(rank)], places, file_for,
                                 std::chrono::steady_clock::now() + timeout);
    };
    return share_memory(connect_peers, fabric, timeout);
  };
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  if (size > 1 && test) {
    const std::string name = fmt::format("{}.{}", test->test_suite_name(), test->name());
    EXPECT_NE(name.find("Rank"), std::string::npos)
        << name << ": `make tsan` takes tests with Rank in their name";
  }
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
        communicators.fail();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tessera::comm
