#include "parallel/world.h"

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <exception>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "core/error.h"
#include "parallel/address.h"

namespace tessera::parallel {
namespace {

using Milliseconds = std::chrono::milliseconds;

// The first sentence of what Gloo says, without the place in its source and what stands before that.
std::string reason(std::string_view what) {
  what = what.substr(0, what.find('\n'));
  if (const size_t end = what.find("] ", what.find("[/")); end != std::string_view::npos)
    what.remove_prefix(end + 2);
  what = what.substr(0, what.find(". "));
  if (what.ends_with(".")) what.remove_suffix(1);
  return std::string(what);
}

[[noreturn]] void lost(int64_t peer, std::string_view why) {
  throw Error(ErrorKind::kPeer, "rank " + std::to_string(peer), "lost: " + reason(why));
}

// Messages of one exchange, each a work of c10d.
class GlooExchange : public Exchange {
 public:
  struct Part {
    int64_t peer;  // in the world
    c10::intrusive_ptr<c10d::Work> work;
  };
  GlooExchange(std::vector<Part> parts, Milliseconds timeout)
      : messages_(std::make_unique<Messages>()), timeout_(timeout) {
    messages_->parts = std::move(parts);
  }

  ~GlooExchange() override {
    if (std::uncaught_exceptions() > 0) {
      // Whoever unwinds past this has an error already, and the peers may never answer.
      abandon(std::move(messages_));
      return;
    }
    for (const Part& part : messages_->parts) {
      try {
        part.work->wait(timeout_);
      } catch (const std::exception&) {  // nobody asked
      }
    }
  }

  void wait() override {
    std::vector<Part>& parts = messages_->parts;
    while (!parts.empty()) {
      const Part part = parts.back();
      parts.pop_back();
      try {
        if (!part.work->wait(timeout_)) lost(part.peer, "the message was given up");
      } catch (const Error&) {
        throw;
      } catch (const c10::Error& error) {
        lost(part.peer, error.what_without_backtrace());
      } catch (const std::exception& error) {
        lost(part.peer, error.what());
      }
    }
  }

 private:
  struct Messages {
    std::vector<Part> parts;
    std::unique_ptr<Messages> next;
  };

  // Messages stay under way, and what they read and write stays in memory, to the end of the process. Takes
  // no memory: there may be none.
  static void abandon(std::unique_ptr<Messages> messages) {
    static std::mutex mutex;
    static Messages* first = nullptr;
    const std::lock_guard lock(mutex);
    messages->next.reset(first);
    first = messages.release();
  }

  std::unique_ptr<Messages> messages_;
  Milliseconds timeout_;
};

}  // namespace

// The Gloo connections of all ranks: one mesh for all groups, whose messages differ in their tag.
class World::Connections {
 public:
  using Device = decltype(c10d::ProcessGroupGloo::createDefaultDevice());

  // device: where this rank listens. All ranks have come to the store.
  Connections(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size, Device device,
              Milliseconds timeout)
      : store_(store), timeout_(timeout) {
    // Gloo waits five times as long for a connection. Busy hosts need a moment whatever the timeout.
    const auto options =
        c10d::ProcessGroupGloo::Options::create(std::max<Milliseconds>(timeout / 5, std::chrono::seconds(1)));
    options->devices.push_back(std::move(device));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(rank), static_cast<int>(size),
                                                        options);
  }

  c10d::ProcessGroupGloo& gloo() { return *gloo_; }
  Milliseconds timeout() const { return timeout_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  Milliseconds timeout_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

namespace {

class GlooTransport : public Transport {
 public:
  GlooTransport(c10d::ProcessGroupGloo& gloo, std::shared_ptr<void> owner, std::vector<int64_t> ranks,
                int tag, Milliseconds timeout)
      : gloo_(gloo), owner_(std::move(owner)), ranks_(std::move(ranks)), tag_(tag), timeout_(timeout) {}

  std::unique_ptr<Exchange> post(std::vector<Message> sends, std::vector<Message> receives) override {
    std::vector<GlooExchange::Part> parts;
    // Receives first: what is expected needs no buffer between.
    for (Message& message : receives) add(parts, message, /*sending=*/false);
    for (Message& message : sends) add(parts, message, /*sending=*/true);
    return std::make_unique<GlooExchange>(std::move(parts), timeout_);
  }

 private:
  void add(std::vector<GlooExchange::Part>& parts, Message& message, bool sending) {
    TESSERA_CHECK(message.tensor.is_contiguous(), "a message must be contiguous");
    if (message.tensor.numel() == 0) return;
    const int64_t peer = ranks_[static_cast<size_t>(message.peer)];
    std::vector<at::Tensor> tensors = {message.tensor};
    try {
      parts.push_back({peer, sending ? gloo_.send(tensors, static_cast<int>(peer), tag_)
                                     : gloo_.recv(tensors, static_cast<int>(peer), tag_)});
    } catch (const c10::Error& error) {
      lost(peer, error.what_without_backtrace());
    } catch (const std::exception& error) {  // gloo's own, of a connection that is down already
      lost(peer, error.what());
    }
  }

  c10d::ProcessGroupGloo& gloo_;
  std::shared_ptr<void> owner_;  // keeps gloo_ alive
  std::vector<int64_t> ranks_;
  int tag_;
  Milliseconds timeout_;
};

}  // namespace

Group World::group(std::vector<int64_t> ranks, std::string axis) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  TESSERA_CHECK(place != ranks.end(), "rank {} is not in its group '{}'", rank_, axis);
  Group group{
      .rank = place - ranks.begin(), .size = static_cast<int64_t>(ranks.size()), .axis = std::move(axis)};
  const auto tag = static_cast<int>(++groups_);
  if (group.size > 1) {
    group.transport = std::make_shared<GlooTransport>(connections_->gloo(), connections_, ranks, tag,
                                                      connections_->timeout());
  }
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

// Says that this rank is here, and waits for all others.
void arrive(c10d::Store& store, const Rendezvous& rendezvous) {
  const auto key = [](int64_t rank) { return fmt::format("rank {}", rank); };
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < rendezvous.world_size; ++rank) keys.push_back(key(rank));
  store.set(key(rendezvous.rank), std::vector<uint8_t>{1});
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
  using Gloo = c10d::ProcessGroupGloo;
  World world;
  world.rank_ = rendezvous.rank;
  world.size_ = rendezvous.world_size;
  if (world.size_ == 1) return world;
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
    const std::string place = named ? rendezvous.interface : listening_address(rendezvous);
    within(timeout, [rendezvous, store] { arrive(*store, rendezvous); });
    step = fmt::format("connect to all others through {}", place);
    world.connections_ = within(timeout, [rendezvous, store, named, place] {
      const auto device =
          named ? Gloo::createDeviceForInterface(place) : Gloo::createDeviceForHostname(place);
      return std::make_shared<Connections>(store, rendezvous.rank, rendezvous.world_size, device,
                                           rendezvous.timeout);
    });
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(
        ErrorKind::kPeer, fmt::format("{}:{}", rendezvous.address, rendezvous.port),
        fmt::format("rank {} of {} could not {}: {}", world.rank_, world.size_, step, reason(error.what())));
  }
  return world;
}

void run_ranks_as_threads(int64_t size, const std::function<void(World)>& body, Milliseconds timeout) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::set_num_threads(1);
        World world;
        world.rank_ = rank;
        world.size_ = size;
        if (size > 1)
          world.connections_ = std::make_shared<World::Connections>(
              store, rank, size, c10d::ProcessGroupGloo::createDeviceForInterface("lo"), timeout);
        body(world);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tessera::parallel
