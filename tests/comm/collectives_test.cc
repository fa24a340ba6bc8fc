#include "comm/collectives.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <atomic>

#include "core/error.h"
#include "tests/support/rank_threads.h"

namespace tessera::comm {
namespace {

using namespace std::string_literals;

// Returns the tensor that rank r contributes, which is the same on every rank that calls this.
at::Tensor contribution(int64_t rank, at::IntArrayRef shape, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank + 1));
  return at::randn(shape, generator).to(dtype);
}

std::vector<int64_t> everyone(int64_t size) {
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) ranks[static_cast<size_t>(i)] = i;
  return ranks;
}

class Collectives : public testing::TestWithParam<std::tuple<int64_t, at::ScalarType, Wire>> {
 protected:
  int64_t size() const { return std::get<0>(GetParam()); }
  at::ScalarType dtype() const { return std::get<1>(GetParam()); }

  void on_ranks(const std::function<void(const Group&)>& body) {
    const auto run = [&](World world) {
      const Group group = world.group(everyone(size()), "test");
      body(group);
      // No rank leaves while another one still connects to it, which Gloo takes for a lost rank.
      all_reduce(at::zeros(1), group);
    };
    run_ranks_as_threads(size(), run, std::get<2>(GetParam()));
  }
};

// The sum is in fp32, or in the dtype of the transport's operation; it is the same on all ranks.
TEST_P(Collectives, AllReduceSumsInFp32AndTheSameOnAllRanks) {
  const std::vector<int64_t> shape = {3, 5, 7};
  const bool is_own = std::get<2>(GetParam()) == Wire::kOrdered;
  at::Tensor sum = at::zeros(shape, is_own ? dtype() : at::kFloat);
  for (int64_t rank = 0; rank < size(); ++rank)
    sum += contribution(rank, shape, dtype()).to(sum.scalar_type());
  const at::Tensor expected = size() == 1 ? contribution(0, shape, dtype()) : sum.to(dtype());
  on_ranks([&](const Group& group) {
    const at::Tensor own = contribution(group.rank, shape, dtype());
    EXPECT_TRUE(at::equal(all_reduce(own, group), expected));
    EXPECT_TRUE(at::equal(own, contribution(group.rank, shape, dtype())));  // the caller still holds it
    EXPECT_TRUE(at::equal(all_reduce(own.clone(), group), expected));
  });
}

TEST_P(Collectives, AllGatherJoinsUnevenParts) {
  for (const int64_t dim : {0, 1, 2}) {
    for (const int64_t total : {1, 4, 13}) {
      std::vector<int64_t> shape = {4, 4, 4};
      shape[static_cast<size_t>(dim)] = total;
      const at::Tensor whole = contribution(9, shape, dtype());
      on_ranks([&](const Group& group) {
        const std::vector<Range> parts = group.parts(total);
        const Range own = parts[static_cast<size_t>(group.rank)];
        EXPECT_TRUE(
            at::equal(all_gather(whole.narrow(dim, own.begin, own.length), dim, parts, group), whole));
      });
    }
  }
}

TEST_P(Collectives, GatherJoinsUnevenPartsOnTheRoot) {
  for (const int64_t dim : {0, 1, 2}) {
    for (const int64_t root : {int64_t{0}, size() - 1}) {
      std::vector<int64_t> shape = {4, 4, 4};
      shape[static_cast<size_t>(dim)] = 13;
      const at::Tensor whole = contribution(9, shape, dtype());
      on_ranks([&](const Group& group) {
        const std::vector<Range> parts = group.parts(13);
        const Range own = parts[static_cast<size_t>(group.rank)];
        const at::Tensor all = gather(whole.narrow(dim, own.begin, own.length), dim, parts, root, group);
        EXPECT_EQ(all.defined(), group.rank == root);
        if (all.defined()) {
          EXPECT_TRUE(at::equal(all, whole));
        }
      });
    }
  }
}

TEST_P(Collectives, ReduceScatterIsThePartOfTheSum) {
  const std::vector<int64_t> shape = {5, 9};
  at::Tensor sum = at::zeros(shape, at::kFloat);
  for (int64_t rank = 0; rank < size(); ++rank) sum += contribution(rank, shape, dtype()).to(at::kFloat);
  on_ranks([&](const Group& group) {
    for (const int64_t dim : {0, 1}) {
      const std::vector<Range> parts = group.parts(shape[static_cast<size_t>(dim)]);
      const Range own = parts[static_cast<size_t>(group.rank)];
      const at::Tensor part = reduce_scatter(contribution(group.rank, shape, dtype()), dim, parts, group);
      EXPECT_TRUE(at::equal(part, sum.to(dtype()).narrow(dim, own.begin, own.length)));
    }
  });
}

TEST_P(Collectives, AllToAllHandsEachRankItsPart) {
  on_ranks([&](const Group& group) {
    std::vector<at::Tensor> sends, receives;
    for (int64_t peer = 0; peer < group.size; ++peer) {  // rank r sends r + 2 p numbers to p
      sends.push_back(at::full({group.rank + 2 * peer}, 10 * group.rank + peer, dtype()));
      receives.push_back(at::empty({peer + 2 * group.rank}, dtype()));
    }
    all_to_all(sends, receives, group).wait();
    for (int64_t peer = 0; peer < group.size; ++peer) {
      EXPECT_TRUE(at::equal(receives[static_cast<size_t>(peer)],
                            at::full({peer + 2 * group.rank}, 10 * peer + group.rank, dtype())));
    }
  });
}

TEST_P(Collectives, RingAndBroadcast) {
  on_ranks([&](const Group& group) {
    const int64_t next = (group.rank + 1) % group.size, previous = (group.rank + group.size - 1) % group.size;
    if (group.size > 1) {
      at::Tensor own = at::full({1000}, group.rank, dtype()), other = at::empty({1000}, dtype());
      // Two messages are under way at once, in order.
      at::Tensor second = own + 100, other_second = at::empty_like(other);
      Pending one = send_receive(own, next, other, previous, group);
      Pending two = send_receive(second, next, other_second, previous, group);
      two.wait();
      one.wait();
      EXPECT_TRUE(at::equal(other, at::full({1000}, previous, dtype())));
      EXPECT_TRUE(at::equal(other_second, other + 100));
    }
    const std::string text = "a request, with \0 in it"s;
    for (int64_t root = 0; root < group.size; ++root) {
      EXPECT_EQ(broadcast_bytes(group.rank == root ? text : "", root, group), text);
      EXPECT_EQ(broadcast_bytes("", root, group), "");
      const std::vector<std::string> all = gather_bytes(text + std::to_string(group.rank), root, group);
      ASSERT_EQ(all.size(), group.rank == root ? static_cast<size_t>(group.size) : 0U);
      for (size_t rank = 0; rank < all.size(); ++rank) EXPECT_EQ(all[rank], text + std::to_string(rank));
    }
    // More than one piece from the last rank, and nothing from the others.
    std::string large((size_t{1} << 24) + 5, 'a');
    large.back() = 'z';
    const bool is_last = group.rank + 1 == group.size;
    const std::vector<std::string> all = gather_bytes(is_last ? large : "", 0, group);
    for (size_t rank = 0; rank < all.size(); ++rank)
      EXPECT_TRUE(all[rank] == (rank + 1 == all.size() ? large : "")) << rank;
    barrier(group);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, Collectives,
    testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::Values(at::kFloat, at::kBFloat16),
                     testing::Values(Wire::kOrdered, Wire::kShared, Wire::kHosts, Wire::kGloo)));

class Wires : public testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Wires,
                         testing::Values(Wire::kOrdered, Wire::kShared, Wire::kHosts, Wire::kGloo));

// This also holds for a copy of the world, and for ranks that are not in all of the groups.
TEST_P(Wires, AGroupIsMadeOnce) {
  const auto body = [](World world) {
    World copy = world;
    const Group pair = world.group({0, 1}, "test");
    EXPECT_EQ(pair.ranks.empty(), world.rank() > 1);
    const Group all = copy.group({0, 1, 2}, "test");
    EXPECT_NE(all.transport, pair.transport);
    EXPECT_EQ(copy.group({0, 1}, "test").transport, pair.transport);
    EXPECT_EQ(world.group({0, 1, 2}, "test").transport, all.transport);
    EXPECT_NE(world.group({0, 1, 2}, "other").transport, all.transport);
    EXPECT_EQ(all_reduce(at::ones({5}), all).sum().item<double>(), 15.0);
  };
  run_ranks_as_threads(3, body, GetParam());
}

TEST_P(Wires, MessagesOfDifferentGroupsDoNotMix) {
  const auto body = [](World world) {
    // Both groups contain rank and rank ^ 1; the order of waiting differs from that of posting.
    Group first, second;
    for (const auto& [axis, group] : {std::pair("first", &first), {"second", &second}}) {
      for (const std::vector<int64_t>& pair : {std::vector<int64_t>{0, 1}, {2, 3}}) {
        const Group made = world.group(pair, axis);
        if (!made.ranks.empty()) *group = made;
      }
    }
    const int64_t peer = 1 - first.rank;
    at::Tensor a = at::empty({8}), b = at::empty({8});
    connect(first, at::kCPU, Posting::kOneWay);
    connect(second, at::kCPU, Posting::kOneWay);
    Pending sending_a = send(at::full({8}, 1.0), peer, first),
            sending_b = send(at::full({8}, 2.0), peer, second);
    Pending getting_b = receive(b, peer, second), getting_a = receive(a, peer, first);
    getting_a.wait();
    getting_b.wait();
    EXPECT_EQ(a.sum().item<double>(), 8.0);
    EXPECT_EQ(b.sum().item<double>(), 16.0);
    sending_a.wait();
    sending_b.wait();
  };
  run_ranks_as_threads(4, body, GetParam());
}

// Both ranks send long messages before either receives, so sending must not wait for space.
TEST_P(Wires, ManyLongMessages) {
  const auto body = [](World world) {
    const Group group = world.group({0, 1}, "test");
    connect(group, at::kCPU, Posting::kOneWay);
    const int64_t peer = 1 - group.rank;
    std::vector<at::Tensor> sent, received;
    std::vector<Pending> pending;
    for (int64_t i = 0; i < 40; ++i) {
      sent.push_back(contribution(group.rank + 2 * i, {1000 * (i + 1)}, at::kFloat));
      pending.push_back(send(sent.back(), peer, group));
    }
    for (int64_t i = 0; i < 40; ++i) {
      received.push_back(at::empty({1000 * (i + 1)}));
      pending.push_back(receive(received.back(), peer, group));
    }
    for (Pending& each : pending) each.wait();
    for (int64_t i = 0; i < 40; ++i)
      EXPECT_TRUE(at::equal(received[static_cast<size_t>(i)],
                            contribution(peer + 2 * i, {1000 * (i + 1)}, at::kFloat)));
  };
  run_ranks_as_threads(2, body, GetParam());
}

constexpr int64_t kTooMany = 1100;  // for a queue of shared memory

void send_numbers(int64_t peer, const Group& group, std::vector<Pending>& sent) {
  for (int64_t i = 0; i < kTooMany; ++i) sent.push_back(send(at::full({1}, i, at::kLong), peer, group));
}

void expect_numbers(int64_t peer, const Group& group) {
  at::Tensor number = at::empty({1}, at::kLong);
  for (int64_t i = 0; i < kTooMany; ++i) {
    receive(number, peer, group).wait();
    ASSERT_EQ(number.item<int64_t>(), i);
  }
}

// Every rank sends more than a queue holds before it receives anything: none may wait for another to begin.
TEST_P(Wires, MoreMessagesThanAQueueHolds) {
  for (const int64_t ranks : {2, 3}) {
    const auto body = [](World world) {
      const Group group = world.group(everyone(world.size()), "test");
      connect(group, at::kCPU, Posting::kOneWay);
      std::vector<Pending> sent;
      send_numbers((group.rank + 1) % group.size, group, sent);
      expect_numbers((group.rank + group.size - 1) % group.size, group);
      for (Pending& each : sent) each.wait();
    };
    run_ranks_as_threads(ranks, body, GetParam());
  }
}

// Rank 0 waits for rank 1, which waits for rank 2, which has too much for rank 0 to send first.
TEST_P(Wires, WhoWaitsForOneRankTakesInFromOthers) {
  // NCCL may wait here, and so may a rank that waits for another host while its own host's queues are full.
  if (GetParam() == Wire::kOrdered || GetParam() == Wire::kHosts) return;
  const auto body = [](World world) {
    const Group group = world.group(everyone(3), "test");
    std::vector<Pending> sent;
    at::Tensor word = at::ones({1});
    if (group.rank == 2) {
      send_numbers(0, group, sent);
      sent.push_back(send(word, 1, group));
    } else if (group.rank == 1) {
      receive(word, 2, group).wait();
      sent.push_back(send(word, 0, group));
    } else {
      receive(word, 1, group).wait();
      expect_numbers(2, group);
    }
    for (Pending& each : sent) each.wait();
  };
  run_ranks_as_threads(3, body, GetParam());
}

// Collectives are either built on messages or operations of the transport.
TEST_P(Wires, HooksSeeEveryOperationWithItsBytes) {
  const auto body = [](World world) {
    std::vector<std::string> seen;
    int64_t bytes = 0;
    CollectiveHooks hooks;
    hooks.began = [&](const Collective& collective) {
      seen.push_back(std::string(collective.axis) + " " + std::string(collective.name));
    };
    hooks.ended = [&](const Collective& collective, std::chrono::nanoseconds under_way,
                      std::chrono::nanoseconds waited) {
      bytes += collective.bytes;
      EXPECT_GE(under_way, waited);
    };
    world.set_hooks(hooks);
    const Group group = world.group({0, 1}, "tp");
    all_reduce(at::ones({10}), group);
    if (GetParam() == Wire::kOrdered) {
      EXPECT_EQ(seen, std::vector<std::string>{"tp all_reduce"});
    } else {
      EXPECT_EQ(seen, (std::vector<std::string>{"tp reduce_scatter", "tp all_gather"}));
    }
    EXPECT_EQ(bytes, 40);
  };
  run_ranks_as_threads(2, body, GetParam());
}

TEST_P(Wires, ALostPeerIsAnErrorThatNamesIt) {
  std::atomic<int> told = 0;
  const auto body = [&](World world) {
    const Group group = world.group({0, 1, 2}, "test");
    barrier(group);               // all are connected
    if (group.rank == 1) return;  // leaves without notice
    try {
      at::Tensor x = at::empty({4});
      send_receive(at::ones({4}), 1, x, 1, group).wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeer);
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      ++told;
    }
  };
  run_ranks_as_threads(3, body, GetParam(), std::chrono::seconds(2));
  EXPECT_EQ(told, 2);
}

TEST(RankThreads, TheFirstFailureEndsAllRanks) {
  const auto body = [](World world) {
    const Group group = world.group({0, 1, 2}, "test");
    if (group.rank == 1) throw std::runtime_error("rank 1 has had enough");
    barrier(group);
  };
  EXPECT_THROW(run_ranks_as_threads(3, body), std::runtime_error);
}

}  // namespace
}  // namespace tessera::comm
