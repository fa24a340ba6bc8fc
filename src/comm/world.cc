#include "comm/world.h"

#include <sys/resource.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
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
#include "core/system_call.h"
#include "core/text.h"

namespace tessera::comm {

using Milliseconds = std::chrono::milliseconds;

World::World(int64_t rank, int64_t size, std::shared_ptr<Fabric> fabric)
    : rank_(rank), size_(size), fabric_(std::move(fabric)) {}

Group World::group(const std::vector<int64_t>& ranks, const std::string& axis, int64_t lane) {
  const auto [made, is_new] = groups_->try_emplace({ranks, axis, lane});
  Group& group = made->second;
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (!is_new || place == ranks.end()) return group;
  group = {.rank = place - ranks.begin(),
           .size = static_cast<int64_t>(ranks.size()),
           .axis = axis,
           .ranks = ranks,
           .hooks = hooks_};
  const auto tag = static_cast<int64_t>(groups_->size());
  if (group.size == 1) return group;
  try {
    group.transport = fabric_->transport(ranks, tag);
  } catch (...) {
    groups_->erase(made);
    throw;
  }
  return group;
}

namespace {

// Runs `step` in a separate thread and returns its result. c10d waits forever for a store's answer, which
// never comes from a host that has dropped off the network. The thread is then abandoned, so `step` must own
// what it uses.
template <typename Step>
auto within(Deadline deadline, Milliseconds timeout, Step step) {
  // Most steps keep the deadline themselves; but Gloo gives a connection five seconds, whatever time is left.
  constexpr auto kGrace = std::chrono::seconds(6);
  std::packaged_task<std::invoke_result_t<Step>()> task(std::move(step));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_until(deadline + kGrace) != std::future_status::ready)
    throw std::runtime_error("no answer within " + seconds_text(timeout));
  return result.get();
}

std::string text_of(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> text = store.get(key);
  return {text.begin(), text.end()};
}

void set_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

// Waits until the keys are set, one by each rank from `first` on.
void wait_for_ranks(c10d::Store& store, const std::vector<std::string>& keys, int64_t first,
                    const Rendezvous& rendezvous, Deadline deadline) {
  try {
    store.wait(keys, time_left(deadline));
  } catch (const std::exception&) {
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!store.check({keys[i]}))
        throw std::runtime_error(fmt::format("rank {} did not arrive within {}",
                                             first + static_cast<int64_t>(i),
                                             seconds_text(rendezvous.timeout)));
    }
    throw;
  }
}

// Turns away ranks of another job that was given the same port, before they read what rank 0 intends for its
// own.
void require_same_job(c10d::Store& store, const Rendezvous& rendezvous, Deadline deadline) {
  constexpr const char* kKey = "tessera job";
  if (rendezvous.rank == 0) return set_text(store, kKey, rendezvous.job);
  wait_for_ranks(store, {kKey}, 0, rendezvous, deadline);
  const std::string job = text_of(store, kKey);
  if (job.empty() || rendezvous.job.empty() || job == rendezvous.job) return;
  throw std::runtime_error(
      fmt::format("port {} is in use by another job; set MASTER_PORT to a free one", rendezvous.port));
}

// Returns a namespace of the store that only this run knows, with a random name drawn by rank 0: runs that
// use the same store by mistake, at the same time or one after another, do not read each other's keys.
c10::intrusive_ptr<c10d::Store> open_session(const c10::intrusive_ptr<c10d::Store>& store,
                                             const Rendezvous& rendezvous, Deadline deadline) {
  if (rendezvous.rank == 0) set_text(*store, "session", random_name());
  wait_for_ranks(*store, {"session"}, 0, rendezvous, deadline);
  return c10::make_intrusive<c10d::PrefixStore>(text_of(*store, "session"), store);
}

// Announces this rank and waits for all others. Returns the text of every rank, by rank.
std::vector<std::string> arrive(c10d::Store& store, const Rendezvous& rendezvous, const std::string& own,
                                Deadline deadline) {
  const auto key = [](int64_t rank) { return fmt::format("rank {}", rank); };
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < rendezvous.world_size; ++rank) keys.push_back(key(rank));
  set_text(store, key(rendezvous.rank), own);
  wait_for_ranks(store, keys, 0, rendezvous, deadline);
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const std::string& rank : keys) all.push_back(text_of(store, rank));
  return all;
}

// If a FileStore cannot write a whole record, the other ranks keep reading it forever.
std::string listening_address(const Rendezvous& rendezvous) {
  std::string address = address_towards(rendezvous.address);
  if (rendezvous.local_world_size < rendezvous.world_size && is_loopback(address) &&
      !is_loopback(rendezvous.address)) {
    usage_error(
        field("interface"),
        "'{}' is the loopback device ({}) on this host, where ranks of other hosts cannot reach it; name "
        "the network interface between the hosts",
        rendezvous.address, address);
  }
  return address;
}

std::shared_ptr<Fabric> add_devices(const Rendezvous& rendezvous,
                                    const c10::intrusive_ptr<c10d::Store>& store,
                                    std::shared_ptr<Fabric> fabric) {
  if (!has_nccl()) return fabric;
  return connect_devices(rendezvous.rank, at::kCUDA, nccl_communicators(store, rendezvous.timeout),
                         std::move(fabric));
}

// If a FileStore cannot write a record whole, the others keep reading it for ever.
void require_room_for_store(int64_t world_size) {
  constexpr uint64_t kBytesOfPair = 4096;  // Gloo's addresses take a few hundred
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
      limit.rlim_cur / kBytesOfPair < static_cast<uint64_t>(world_size * world_size))
    usage_error("launcher", "cannot connect {} ranks: {}; raise that limit", world_size,
                system_reason(EFBIG));
}

// Joins over inherited sockets, to which no other process can connect.
std::shared_ptr<Fabric> join_by_inheritance(const Rendezvous& rendezvous, Deadline deadline) {
  c10::intrusive_ptr<c10d::Store> store;
  const bool needs_store = !rendezvous.shared_memory || has_nccl();
  if (needs_store && rendezvous.store_file >= 0) {
    require_room_for_store(rendezvous.world_size);
    store = c10::make_intrusive<c10d::FileStore>(fmt::format("/proc/self/fd/{}", rendezvous.store_file),
                                                 static_cast<int>(rendezvous.world_size));
    store->setTimeout(rendezvous.timeout);
  }
  std::map<int64_t, Descriptor> sockets;
  for (const auto& [peer, socket] : rendezvous.sockets) sockets.emplace(peer, Descriptor(socket));
  std::shared_ptr<Fabric> fabric;
  if (rendezvous.shared_memory) {
    const auto greet = [&](const FileForPeer& file_for) {
      return greet_local_peers(rendezvous.rank, std::move(sockets), file_for, deadline);
    };
    fabric = share_memory(greet, nullptr, rendezvous.timeout);
  } else {
    TESSERA_CHECK(store, "ranks without shared memory need a store");
    fabric = connect_gloo(store, rendezvous.rank, rendezvous.world_size, {rendezvous.interface, true},
                          rendezvous.timeout);
  }
  return add_devices(rendezvous, store, std::move(fabric));
}

// Connects to the store, which rank 0 hosts unless a launcher does.
c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& rendezvous,
                                           const c10d::TCPStoreOptions& options) {
  try {
    return c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).find("EADDRINUSE") == std::string_view::npos) throw;
    throw std::runtime_error(fmt::format(
        "port {} is in use, perhaps by another job; set MASTER_PORT to a free one", rendezvous.port));
  }
}

// `here` ranks have reported that they are on this host; 0 if the system does not distinguish hosts.
void require_local_size(const Rendezvous& rendezvous, int64_t here) {
  if (here == 0 || rendezvous.local_world_size <= here || rendezvous.local_size_variable.empty()) return;
  usage_error(rendezvous.local_size_variable, "says that {} ranks are on this host, but {} {}",
              rendezvous.local_world_size, here, here == 1 ? "is" : "are");
}

std::shared_ptr<Fabric> join_by_store(const Rendezvous& rendezvous, Deadline deadline, std::string& step) {
  const int64_t rank = rendezvous.rank, size = rendezvous.world_size;
  const Milliseconds timeout = rendezvous.timeout;
  require_address(rendezvous.address);
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = rendezvous.rank == 0 && !rendezvous.store_is_elsewhere;
  options.waitWorkers = false;
  options.timeout = timeout;
  const auto store = within(deadline, timeout, [=]() -> c10::intrusive_ptr<c10d::Store> {
    c10::intrusive_ptr<c10d::Store> whole = open_store(rendezvous, options);
    require_same_job(*whole, rendezvous, deadline);
    if (!rendezvous.store_prefix.empty())
      whole = c10::make_intrusive<c10d::PrefixStore>(rendezvous.store_prefix, whole);
    return open_session(whole, rendezvous, deadline);
  });
  const bool named = !rendezvous.interface.empty();
  const GlooPlace place{named ? rendezvous.interface : listening_address(rendezvous), named};
  const auto endpoint = rendezvous.shared_memory ? std::make_shared<LocalEndpoint>() : nullptr;
  const std::string own = endpoint ? endpoint->text() : this_host();
  const std::vector<std::string> all =
      within(deadline, timeout, [=] { return arrive(*store, rendezvous, own, deadline); });
  const auto here =
      std::count_if(all.begin(), all.end(), [&](const auto& text) { return same_host(own, text); });
  require_local_size(rendezvous, here);
  std::shared_ptr<Fabric> fabric;
  if (!endpoint || here < size) {
    step = fmt::format("connect to all others through {}", place.name);
    fabric = within(deadline, timeout, [=] { return connect_gloo(store, rank, size, place, timeout); });
  }
  // Rank 0, which may host the store, passes this point only when all other ranks of its host have read their
  // texts; Gloo and NCCL keep the store alive.
  if (endpoint) {
    const auto connect = [&](const FileForPeer& file_for) {
      return connect_local_peers(rank, *endpoint, all, file_for, deadline);
    };
    fabric = share_memory(connect, fabric, timeout);
  }
  return add_devices(rendezvous, store, std::move(fabric));
}

}  // namespace

World World::join(const Rendezvous& rendezvous) {
  if (rendezvous.world_size == 1) return {};
  const bool inherits = !rendezvous.sockets.empty();
  // The process that started all ranks of this host notices if they end or stall. Their programs may take a
  // while to load.
  const Milliseconds least = inherits ? std::chrono::minutes(1) : Milliseconds(0);
  const Deadline deadline = std::chrono::steady_clock::now() + std::max(rendezvous.timeout, least);
  std::string step = "join";
  try {
    return {rendezvous.rank, rendezvous.world_size,
            inherits ? join_by_inheritance(rendezvous, deadline) : join_by_store(rendezvous, deadline, step)};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (is_lack_of_resources(error)) throw;
    throw Error(ErrorKind::kPeer,
                inherits ? "launcher" : fmt::format("{}:{}", rendezvous.address, rendezvous.port),
                fmt::format("rank {} of {} could not {}: {}", rendezvous.rank, rendezvous.world_size, step,
                            gloo_reason(error.what())));
  }
}

}  // namespace tessera::comm
