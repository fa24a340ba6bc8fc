// Orders and events of a world as frames, and the connection of a world whose front is another process.
#pragma once

#include <deque>

#include "serve/frames.h"
#include "serve/world.h"

namespace tessera::serve {

// The last two throw Error(kPeer) for a frame that is not one.
Frame frame_of(const WorldOrder& order);
Frame frame_of(const WorldEvent& event);
WorldOrder order_of(const Frame& frame);
WorldEvent event_of(const Frame& frame);

// Rank 0's end. It waits for the front only to get orders: a front that does not read delays no step.
class SocketPort final : public WorldPort {
 public:
  explicit SocketPort(Descriptor socket) : socket_(std::move(socket)) {}

  // Throw Error(kPeer) if the front is gone.
  std::vector<WorldOrder> orders(std::chrono::milliseconds wait) override;
  void tell(const WorldEvent& event) override { socket_.send(frame_of(event)); }
  bool will_drop(int64_t run) override;

 private:
  void read(std::chrono::milliseconds wait);

  FrameSocket socket_;
  std::deque<WorldOrder> read_;  // that orders() has not returned yet
};

}  // namespace tessera::serve
