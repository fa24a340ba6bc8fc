// All ranks of a run: how they find each other, and the groups among them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/transport.h"

namespace tessera::comm {

// Where and as whom a rank joins.
struct Rendezvous {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;  // among the ranks of this host
  int64_t local_world_size = 1;
  std::string address = "127.0.0.1";  // of the host where rank 0 runs
  uint16_t port = 29500;
  bool store_is_elsewhere = false;  // the launcher keeps the store, not rank 0
  std::string store_prefix;         // of all keys, in a store that others use as well
  std::map<int64_t, int> sockets;   // to all others, inherited from who started them all on this host: then
                                    // there is no store; taken over
  int store_file = -1;              // with `sockets`: a file in memory for what needs a store all the same
  std::string interface;            // network interface for messages; empty: the one that leads to `address`
  bool shared_memory = true;        // between ranks of one host, instead of that interface
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  // of silence, and of joining
};

// One rank's view of the world. Copies share the connections.
class World {
 public:
  World() = default;  // a world of one
  World(int64_t rank, int64_t size, std::shared_ptr<Fabric> fabric);

  // Joins through inherited sockets or a TCP store; returns when all ranks have joined. Throws Error(kPeer)
  // when one does not come, or cannot be connected to, within the timeout.
  static World join(const Rendezvous& rendezvous);

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // The group of these ranks (numbers in the world); a default one where this rank is not among them. It is
  // made once and kept: who asks again for the same ranks and axis gets the same connections. Every group has
  // a number of its own, the same on all members: groups are asked for in the same order on all ranks, also
  // those that a rank is not in.
  Group group(const std::vector<int64_t>& ranks, const std::string& axis);

  // Replaces the hooks and returns those before.
  CollectiveHooks set_hooks(CollectiveHooks hooks) { return std::exchange(*hooks_, std::move(hooks)); }

  // Gives up all messages that are under way, after something has failed on this rank: the others, whatever
  // they wait for, get Error(kPeer) that names it, and have to call this too. Returns when all ranks have;
  // then the world is as if nothing had been sent. False, at once, where the ranks are connected by what
  // cannot do that: anything but memory.
  bool abort() { return size_ == 1 || fabric_->abort(); }
  // Gives memory back that no message has needed since the last time.
  void trim() {
    if (fabric_) fabric_->trim();
  }

 private:
  using Groups = std::map<std::pair<std::vector<int64_t>, std::string>, Group>;  // by ranks and axis

  int64_t rank_ = 0;
  int64_t size_ = 1;
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Groups> groups_ = std::make_shared<Groups>();
  std::shared_ptr<CollectiveHooks> hooks_ = std::make_shared<CollectiveHooks>();
};

// The hooks for as long as the object lives; then those before are back.
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
