// Whether other ranks of this host still run. A rank that computes for long sends nothing, and is alive; one
// that is stopped sends nothing either. So every process has a thread that does nothing but say that it runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::comm {

// How often a sign of life is due, where its absence for `timeout` counts as death.
std::chrono::milliseconds heartbeat_interval(std::chrono::milliseconds timeout);

// Sends a byte to each peer at short intervals, and notes when theirs stay away. All peers have one.
class Heartbeat {
 public:
  // Sockets by the peer's number, connected, of packets; they outlive this object.
  Heartbeat(const std::map<int64_t, int>& sockets, std::chrono::milliseconds timeout);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Whether the peer has given no sign of life for longer than the timeout, of the time in which this process
  // ran itself. From any thread.
  bool is_silent(int64_t peer) const;

 private:
  struct Peer {
    int socket;
    std::atomic<int64_t> silent_ms{0};
  };
  void run();

  std::chrono::milliseconds timeout_, interval_;
  std::map<int64_t, Peer> peers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tessera::comm
