// What the supervisor of a server, its front and its worlds tell each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "serve/frames.h"

namespace tessera::serve {

struct ControlMessage {
  enum class Kind {
    // The supervisor tells a front:
    kWorld,      // the processes of `world` begin; `socket` leads to them (serve/world_frames.h)
    kReady,      // `world` has loaded its weights. A new front is told so of worlds that were there before
    kWorldDown,  // its processes are gone, with `exit_code` and `text`: why. Others begin in `seconds`
    kDrain,      // take no more jobs, end those under way within `seconds`, and return 0
    // A front tells the supervisor:
    kServing,  // it answers requests
    kAlive,    // every second, from the loop that answers them
    kReplace,  // `world` does not answer, says `text`: kill its processes and start others
    // A world tells the supervisor, besides kReady, which is of its first rank:
    kFailed  // it ends with `exit_code`, because of `text`
  };
  Kind kind = Kind::kServing;
  int64_t world = 0;
  // How often the processes of this world have begun anew.
  int64_t restarts = 0;
  int exit_code = 0;
  double seconds = 0;
  std::string text = {};
  Descriptor socket = Descriptor();  // of kWorld
};

// One end of a pair of FrameSocket::make_pair().
class ControlSocket {
 public:
  // Takes over the descriptor.
  explicit ControlSocket(Descriptor socket) : socket_(std::move(socket)) {}

  // Never waits; throws Error(kPeer) if the other end is closed.
  void tell(ControlMessage message);
  // Returns the next message, or nothing if none comes within `wait`. Throws Error(kPeer) at the end of the
  // stream and for what is no message.
  std::optional<ControlMessage> read(std::chrono::milliseconds wait = std::chrono::milliseconds(0));
  // Sends what the other end had no room for before. Returns whether nothing is left.
  bool flush() { return socket_.flush(); }
  bool has_unsent() const { return socket_.has_unsent(); }
  int descriptor() const { return socket_.descriptor(); }

 private:
  FrameSocket socket_;
};

}  // namespace tessera::serve
