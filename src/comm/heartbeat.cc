#include "comm/heartbeat.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// Returns whether anything has arrived since the last call.
bool take_all(int socket) {
  // This is more packets than a well-behaved peer sends while this thread sleeps.
  constexpr int kMost = 64;
  std::array<char, 16> bytes = {};
  int taken = 0;
  while (taken < kMost && ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) ++taken;
  return taken > 0;
}

}  // namespace

Milliseconds heartbeat_interval(Milliseconds timeout) {
  return std::clamp(timeout / 10, Milliseconds(10), Milliseconds(1000));
}

Heartbeat::Heartbeat(const std::map<int64_t, int>& sockets, Milliseconds timeout)
    : timeout_(timeout), interval_(heartbeat_interval(timeout)) {
  for (const auto& [peer, socket] : sockets) peers_[peer].socket = socket;
  thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Heartbeat::is_silent(int64_t peer) const {
  return peers_.at(peer).silent_ms > timeout_.count();
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!ends_) {
    const auto now = Clock::now();
    // If this process itself was stopped, perhaps together with the others, that time does not count against
    // them.
    const auto passed = std::min(std::chrono::duration_cast<Milliseconds>(now - last), 2 * interval_);
    last = now;
    for (auto& [number, peer] : peers_) {
      constexpr char kBeat = 1;
      // A send fails when the peer's buffer is full or the peer is gone; neither matters here.
      (void)::send(peer.socket, &kBeat, sizeof(kBeat), MSG_DONTWAIT | MSG_NOSIGNAL);
      peer.silent_ms = take_all(peer.socket) ? 0 : peer.silent_ms + passed.count();
    }
    changed_.wait_for(lock, interval_, [this] { return ends_; });
  }
}

}  // namespace tessera::comm
