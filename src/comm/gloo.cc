#include "comm/gloo.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <exception>
#include <mutex>

#include "comm/gloo_heartbeat.h"
#include "core/error.h"
#include "core/system_call.h"

namespace tessera::comm {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Gloo itself never times out while all peers live; the heartbeat ends a wait for a lost peer.
constexpr Milliseconds kAnyTime = std::chrono::hours(24 * 365);

// Holds the connections of this rank, and the heartbeat that watches them.
struct GlooMesh {
  GlooMesh(c10::intrusive_ptr<c10d::ProcessGroupGloo> connected, Milliseconds given)
      : gloo(std::move(connected)), timeout(given), heartbeat(gloo, given) {}

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  Milliseconds timeout;
  GlooHeartbeat heartbeat;

  // Throws for a failed wait for `peer`.
  [[noreturn]] void lost(int64_t peer, std::string_view why) const {
    require_alive();  // another lost peer may be the cause
    lost_peer(peer, gloo_reason(why));
  }
  void require_alive() const {
    if (const auto silent = heartbeat.silent()) silent_peer(*silent, timeout);
  }
};

// Holds the messages of one exchange, each of which is a c10d work.
class GlooExchange : public Exchange {
 public:
  struct Part {
    int64_t peer;  // rank in the world
    c10::intrusive_ptr<c10d::Work> work;
  };
  GlooExchange(std::vector<Part> parts, std::shared_ptr<GlooMesh> mesh)
      : messages_(std::make_unique<Messages>()), mesh_(std::move(mesh)) {
    messages_->parts = std::move(parts);
  }

  ~GlooExchange() override {
    if (std::uncaught_exceptions() > 0) {
      // An exception is already propagating, and the peers may never answer.
      abandon(std::move(messages_));
      return;
    }
    for (const Part& part : messages_->parts) {
      try {
        part.work->wait(kAnyTime);
      } catch (const std::exception&) {  // nobody waits for the result
      }
    }
  }

  void wait() override {
    std::vector<Part>& parts = messages_->parts;
    while (!parts.empty()) {
      const Part part = parts.back();
      parts.pop_back();
      try {
        if (!part.work->wait(kAnyTime)) mesh_->lost(part.peer, "the message was given up");
      } catch (const Error&) {
        throw;
      } catch (const c10::Error& error) {
        mesh_->lost(part.peer, error.what_without_backtrace());
      } catch (const std::exception& error) {
        mesh_->lost(part.peer, error.what());
      }
    }
  }

 private:
  struct Messages {
    std::vector<Part> parts;
    std::unique_ptr<Messages> next;
  };

  // Keeps the messages, and the memory that they read and write, until the process ends. Allocates nothing,
  // because memory may have run out.
  static void abandon(std::unique_ptr<Messages> messages) {
    static std::mutex mutex;
    static Messages* first = nullptr;
    const std::lock_guard lock(mutex);
    messages->next.reset(first);
    first = messages.release();
  }

  std::unique_ptr<Messages> messages_;
  std::shared_ptr<GlooMesh> mesh_;
};

// This is the transport of one group, whose messages have the group's tag.
class GlooTransport : public Transport {
 public:
  GlooTransport(std::shared_ptr<GlooMesh> mesh, std::vector<int64_t> ranks, int tag)
      : mesh_(std::move(mesh)), ranks_(std::move(ranks)), tag_(tag) {}

  std::unique_ptr<Exchange> post(std::vector<Message> sends, std::vector<Message> receives,
                                 Posting) override {
    std::vector<GlooExchange::Part> parts;
    // Receives are posted first, because an expected message does not need an intermediate buffer.
    for (Message& message : receives) add(parts, message, /*sending=*/false);
    for (Message& message : sends) add(parts, message, /*sending=*/true);
    return std::make_unique<GlooExchange>(std::move(parts), mesh_);
  }

 private:
  void add(std::vector<GlooExchange::Part>& parts, Message& message, bool sending) {
    TESSERA_CHECK(message.tensor.is_contiguous(), "a message must be contiguous");
    if (message.tensor.numel() == 0) return;
    const int64_t peer = ranks_[static_cast<size_t>(message.peer)];
    std::vector<at::Tensor> tensors = {message.tensor};
    try {
      parts.push_back({peer, sending ? mesh_->gloo->send(tensors, static_cast<int>(peer), tag_)
                                     : mesh_->gloo->recv(tensors, static_cast<int>(peer), tag_)});
    } catch (const c10::Error& error) {
      mesh_->lost(peer, error.what_without_backtrace());
    } catch (const std::exception& error) {  // thrown by Gloo itself when a connection is already down
      if (is_lack_of_resources(error)) throw;
      mesh_->lost(peer, error.what());
    }
  }

  std::shared_ptr<GlooMesh> mesh_;
  std::vector<int64_t> ranks_;
  int tag_;
};

class GlooFabric : public Fabric {
 public:
  explicit GlooFabric(std::shared_ptr<GlooMesh> mesh) : mesh_(std::move(mesh)) {}

  std::shared_ptr<Transport> transport(std::vector<int64_t> ranks, int64_t tag) override {
    return std::make_shared<GlooTransport>(mesh_, std::move(ranks), static_cast<int>(tag));
  }
  void require_alive() override {
    mesh_->require_alive();
    if (const auto closed = mesh_->heartbeat.closed()) lost_peer(*closed, "it closed the connection");
  }

 private:
  std::shared_ptr<GlooMesh> mesh_;
};

}  // namespace

std::string gloo_reason(std::string_view what) {
  what = what.substr(0, what.find('\n'));
  if (const size_t end = what.find("] ", what.find("[/")); end != std::string_view::npos)
    what.remove_prefix(end + 2);
  what = what.substr(0, what.find(". "));
  if (what.ends_with(".")) what.remove_suffix(1);
  return std::string(what);
}

std::shared_ptr<Fabric> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                                     const GlooPlace& place, Milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  // Gloo waits five times as long for a connection. Busy hosts need a moment, whatever the timeout.
  const auto options = Gloo::Options::create(std::max<Milliseconds>(timeout / 5, std::chrono::seconds(1)));
  options->threads = 1;  // for Gloo's own collectives, which are not used
  options->devices.push_back(place.is_interface ? Gloo::createDeviceForInterface(place.name)
                                                : Gloo::createDeviceForHostname(place.name));
  return std::make_shared<GlooFabric>(std::make_shared<GlooMesh>(
      c10::make_intrusive<Gloo>(store, static_cast<int>(rank), static_cast<int>(size), options), timeout));
}

}  // namespace tessera::comm
