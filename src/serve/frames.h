// Messages between the processes of a server, over socket pairs. Large contents go through shared memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "core/system_call.h"

namespace tessera::serve {

struct Frame {
  std::string text;  // JSON
  std::string data;  // its bytes, such as pixels

  bool operator==(const Frame&) const = default;
};

// One end of a pair. Only read() waits for the other end, so a stopped process delays nobody. Not
// thread-safe.
class FrameSocket {
 public:
  // Takes over the descriptor, which came from make_pair() or was passed to another process.
  explicit FrameSocket(Descriptor socket);
  // Returns two ends, which exec() closes.
  static std::pair<Descriptor, Descriptor> make_pair();

  // Sends a frame, or keeps it for flush() if the other end has not read those before. Throws Error(kPeer) if
  // the other end is closed, and Error(kMemory) if there is no shared memory. A descriptor can be passed with
  // a frame of at most 32 KiB.
  void send(const Frame& frame, Descriptor passed = Descriptor());
  // Sends kept frames as far as the other end reads. Returns whether everything has been sent.
  bool flush();
  bool has_unsent() const { return !unsent_.empty(); }

  // Returns the next frame, or nothing if none comes within `wait`. Throws Error(kPeer) at the end of the
  // stream, after all frames that the other end has sent, and for anything that is not a frame.
  std::optional<Frame> read(std::chrono::milliseconds wait = std::chrono::milliseconds(0));
  // The descriptor that came with the last frame read; -1 if there was none.
  Descriptor take_passed() { return std::exchange(passed_, Descriptor()); }

  int descriptor() const { return socket_.number(); }

 private:
  struct Packet {
    std::string bytes;
    Descriptor attached = Descriptor();  // one that is passed, or the memory of a frame that is not in
                                         // `bytes`
  };
  static Packet packet_of(const Frame& frame, Descriptor passed);
  bool send_packet(const Packet& packet);

  Descriptor socket_, passed_ = Descriptor();
  std::deque<Packet> unsent_;
  std::string packet_;  // read()
  bool is_reset_ = false;
};

}  // namespace tessera::serve
