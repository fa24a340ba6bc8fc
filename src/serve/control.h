// Messages between the supervisor of a server, its front and its worlds.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "serve/frames.h"

namespace tessera::serve {

struct ControlMessage {
  enum class Kind {
    // From the supervisor to a front:
    kWorld,      // the processes of `world` start; `socket` leads to them (serve/world_frames.h)
    kReady,      // `world` has loaded its weights; a new front gets this for all existing worlds
    kWorldDown,  // its processes are gone, with `exit_code` and the reason in `text`; others start in
                 // `seconds`
    kDrain,      // take no more jobs, end the running ones within `seconds`, and return 0
    // From a front to the supervisor:
    kServing,  // it answers requests
    kAlive,    // every second, from the loop that answers requests
    kReplace,  // `world` does not answer, for the reason in `text`: kill its processes and start others
    // From a world to the supervisor, besides kReady, which its first rank sends:
    kFailed  // it ends with `exit_code`, for the reason in `text`
  };
  Kind kind = Kind::kServing;
  int64_t world = 0;
  // How many times the processes of this world have been restarted.
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

  // Never waits. Throws Error(kPeer) if the other end is closed.
  void tell(ControlMessage message);
  // Returns the next message, or nothing if none comes within `wait`. Throws Error(kPeer) at the end of the
  // stream, and for anything that is not a message.
  std::optional<ControlMessage> read(std::chrono::milliseconds wait = std::chrono::milliseconds(0));
  // Sends what the other end had no room for. Returns whether everything has been sent.
  bool flush() { return socket_.flush(); }
  bool has_unsent() const { return socket_.has_unsent(); }
  int descriptor() const { return socket_.descriptor(); }

 private:
  FrameSocket socket_;
};

}  // namespace tessera::serve
