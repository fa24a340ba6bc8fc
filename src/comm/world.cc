#include "comm/world.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <exception>
#include <future>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "comm/address.h"
#include "comm/device_fabric.h"
#include "comm/gloo.h"
#include "comm/nccl.h"
#include "comm/shared_memory.h"
#include "core/error.h"

namespace tessera::comm {

using Milliseconds = std::chrono::milliseconds;

World::World(int64_t rank, int64_t size, std::shared_ptr<Fabric> fabric)
    : rank_(rank), size_(size), fabric_(std::move(fabric)) {}

Group World::group(std::vector<int64_t> ranks, std::string axis) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  TESSERA_CHECK(place != ranks.end(), "rank {} is not in its group '{}'", rank_, axis);
  Group group{
      .rank = place - ranks.begin(), .size = static_cast<int64_t>(ranks.size()), .axis = std::move(axis)};
  const int64_t tag = ++groups_;
  if (group.size > 1) group.transport = fabric_->transport(ranks, tag);
  group.ranks = std::move(ranks);
  group.hooks = hooks_;
  return group;
}

namespace {

std::string seconds_text(Milliseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

// What `step` returns, which a thread of its own carries out: c10d waits without end for a store's answer,
// and a host that the network has lost gives none. The thread is abandoned then, so `step` owns what it uses.
template <typename Step>
auto within(Milliseconds timeout, Step step) {
  // Steps keep the timeout themselves, where they do; and a connection has five seconds, whatever the
  // timeout.
  constexpr auto kGrace = std::chrono::seconds(6);
  std::packaged_task<std::invoke_result_t<Step>()> task(std::move(step));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(timeout + kGrace) != std::future_status::ready)
    throw std::runtime_error("no answer within " + seconds_text(timeout));
  return result.get();
}

// Says that this rank is here, and waits for all others. What each has to say of itself, by rank.
std::vector<std::string> arrive(c10d::Store& store, const Rendezvous& rendezvous, const std::string& own) {
  const auto key = [](int64_t rank) { return fmt::format("rank {}", rank); };
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < rendezvous.world_size; ++rank) keys.push_back(key(rank));
  store.set(key(rendezvous.rank), std::vector<uint8_t>(own.begin(), own.end()));
  try {
    store.wait(keys, rendezvous.timeout);
  } catch (const std::exception&) {
    for (const std::string& rank : keys) {
      if (!store.check({rank}))
        throw std::runtime_error(
            fmt::format("{} did not come within {}", rank, seconds_text(rendezvous.timeout)));
    }
    throw;
  }
  std::vector<std::string> all;
  for (const std::string& rank : keys) {
    const std::vector<uint8_t> text = store.get(rank);
    all.emplace_back(text.begin(), text.end());
  }
  return all;
}

// The address on which this rank listens when no interface is named. A host's own name is not asked: it often
// stands for the loopback device.
std::string listening_address(const Rendezvous& rendezvous) {
  std::string address = address_towards(rendezvous.address);
  if (rendezvous.local_world_size < rendezvous.world_size && is_loopback(address) &&
      !is_loopback(rendezvous.address)) {
    usage_error(
        "--interface",
        "'{}' is the loopback device ({}) on this host, where ranks of other hosts cannot reach it; name "
        "the network interface between the hosts",
        rendezvous.address, address);
  }
  return address;
}

}  // namespace

World World::join(const Rendezvous& rendezvous) {
  const int64_t rank = rendezvous.rank, size = rendezvous.world_size;
  if (size == 1) return {};
  const Milliseconds timeout = rendezvous.timeout;
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = rendezvous.rank == 0 && !rendezvous.store_is_elsewhere;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (rendezvous.listening_socket >= 0 && options.isServer)
    options.masterListenFd = rendezvous.listening_socket;
  std::string step = "join";
  try {
    const auto store = within(timeout, [rendezvous, options]() -> c10::intrusive_ptr<c10d::Store> {
      const auto whole = c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
      if (rendezvous.store_prefix.empty()) return whole;
      return c10::make_intrusive<c10d::PrefixStore>(rendezvous.store_prefix, whole);
    });
    const bool named = !rendezvous.interface.empty();
    const GlooPlace place{named ? rendezvous.interface : listening_address(rendezvous), named};
    const auto meeting_place = rendezvous.shared_memory ? std::make_shared<MeetingPlace>() : nullptr;
    const std::string own = meeting_place ? meeting_place->text() : "";
    const std::vector<std::string> all =
        within(timeout, [rendezvous, store, own] { return arrive(*store, rendezvous, own); });
    std::shared_ptr<Fabric> fabric;
    if (!std::all_of(all.begin(), all.end(), [&](const std::string& text) { return same_host(own, text); })) {
      step = fmt::format("connect to all others through {}", place.name);
      fabric = within(timeout, [=] { return connect_gloo(store, rank, size, place, timeout); });
    }
    // Rank 0, whose store this may be, is through with this once all others of its host have read theirs;
    // Gloo and NCCL keep the store.
    if (meeting_place) fabric = share_memory(rank, *meeting_place, all, fabric, timeout);
    if (has_nccl()) fabric = connect_devices(rank, at::kCUDA, nccl_communicators(store, timeout), fabric);
    return {rank, size, fabric};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kPeer, fmt::format("{}:{}", rendezvous.address, rendezvous.port),
                fmt::format("rank {} of {} could not {}: {}", rank, size, step, gloo_reason(error.what())));
  }
}

}  // namespace tessera::comm
