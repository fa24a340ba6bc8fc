// Detects whether other ranks of this host are still running. A rank that computes for a long time sends
// nothing although it is alive, just like a stopped rank. Every process therefore has a thread that only
// reports that it is running.
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

// Returns the interval between signs of life, if their absence for `timeout` means that a rank is lost.
std::chrono::milliseconds heartbeat_interval(std::chrono::milliseconds timeout);

// Sends a byte to each peer at short intervals and records when theirs are missing. All peers must have one.
class Heartbeat {
 public:
  // `sockets` are connected packet sockets, by the peer's rank in the world; they must outlive this object.
  Heartbeat(const std::map<int64_t, int>& sockets, std::chrono::milliseconds timeout);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Returns whether the peer has given no sign of life for longer than the timeout, counting only the time in
  // which this process itself ran. May be called from any thread.
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
