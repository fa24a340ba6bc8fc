// The world of all ranks of a run: how ranks find each other, and the groups among them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/transport.h"

namespace tessera::comm {

// Where a rank joins, and as which rank.
struct Rendezvous {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;  // among the ranks of this host
  int64_t local_world_size = 1;
  std::string address = "127.0.0.1";  // that of the host where rank 0 runs
  uint16_t port = 29500;
  bool store_is_elsewhere = false;  // the launcher hosts the store, not rank 0
  std::string store_prefix;         // prepended to all keys, in a store that others use too
  std::string job;                  // the launcher's name for the job of these ranks; empty if it has none
  std::string local_size_variable;  // the variable that gave local_world_size; empty if none did
  // Connected to all other ranks, and inherited from the process that started them all on this host; replaces
  // the store. World::join() takes ownership.
  std::map<int64_t, int> sockets;
  // With `sockets`: a memory file for whatever still needs a store.
  int store_file = -1;
  std::string interface;      // for messages; empty: the interface that leads to `address`
  bool shared_memory = true;  // between ranks of one host, instead of the interface
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  // for silence, and for joining
};

// One rank's view of the world. Copies share the connections.
class World {
 public:
  World() = default;  // a world of one
  World(int64_t rank, int64_t size, std::shared_ptr<Fabric> fabric);

  // Joins through inherited sockets or a TCP store, and returns when all ranks have joined. Throws
  // Error(kPeer) if a rank does not arrive or cannot be reached within the timeout.
  static World join(const Rendezvous& rendezvous);

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // The group of these ranks of the world; a default-constructed one if this rank is not among them. Groups
  // are kept: the same ranks, axis and lane give the same connections again. Messages of different lanes do
  // not mix, so several runs can be in progress. All ranks must ask for groups in the same order, including
  // those that they are not in, so that each group gets the same tag on all members.
  Group group(const std::vector<int64_t>& ranks, const std::string& axis, int64_t lane = 0);

  // Replaces the hooks and returns the previous ones.
  CollectiveHooks set_hooks(CollectiveHooks hooks) { return std::exchange(*hooks_, std::move(hooks)); }

  // Aborts all messages in flight, after a failure on this rank. The other ranks, whatever they are waiting
  // for, get an Error(kPeer) naming this rank, and must call this too. Returns when all ranks have called it;
  // then the world is as if nothing had been sent. Returns false at once if the ranks are connected by
  // anything but shared memory, which cannot do this.
  bool abort() { return size_ == 1 || fabric_->abort(); }
  // Releases memory that no message has needed since the last call.
  void trim() {
    if (fabric_) fabric_->trim();
  }

 private:
  // By ranks, axis and lane.
  using Groups = std::map<std::tuple<std::vector<int64_t>, std::string, int64_t>, Group>;

  int64_t rank_ = 0;
  int64_t size_ = 1;
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Groups> groups_ = std::make_shared<Groups>();
  std::shared_ptr<CollectiveHooks> hooks_ = std::make_shared<CollectiveHooks>();
};

// Sets the hooks, and restores the previous ones on destruction.
class ScopedHooks {
 public:
  ScopedHooks(World& world, CollectiveHooks hooks)
      : world_(world), before_(world.set_hooks(std::move(hooks))) {}
  ~ScopedHooks() { world_.set_hooks(std::move(before_)); }
  ScopedHooks(const ScopedHooks&) = delete;
  ScopedHooks& operator=(const ScopedHooks&) = delete;

 private:
  World& world_;
  CollectiveHooks before_;
};

}  // namespace tessera::comm
