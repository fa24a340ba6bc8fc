// The front's connection to a world.
#pragma once

#include <optional>
#include <utility>

#include "serve/frames.h"
#include "serve/world_frames.h"

namespace tessera::serve {

// All members except the destructor throw Error(kPeer) if the world is gone, and none of them waits.
class WorldLink {
 public:
  virtual ~WorldLink() = default;
  virtual void send(const WorldOrder& order) = 0;
  // Sends what the world had no room for before.
  virtual void flush() = 0;
  // The next event that has arrived.
  virtual std::optional<WorldEvent> read() = 0;
};

class SocketLink final : public WorldLink {
 public:
  explicit SocketLink(Descriptor socket) : socket_(std::move(socket)) {}
  void send(const WorldOrder& order) override { socket_.send(frame_of(order)); }
  void flush() override { socket_.flush(); }
  std::optional<WorldEvent> read() override {
    const std::optional<Frame> frame = socket_.read();
    if (!frame) return std::nullopt;
    return event_of(*frame);
  }
  int descriptor() const { return socket_.descriptor(); }

 private:
  FrameSocket socket_;
};

}  // namespace tessera::serve
