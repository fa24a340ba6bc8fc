// Detects whether ranks connected by Gloo are still running, as comm/heartbeat.h does for processes of one
// host.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace tessera::comm {

// One thread per peer exchanges a byte with it at short intervals. If a byte is missing for the timeout, Gloo
// itself ends all waits of this process with an exception; silent() then returns the rank.
class GlooHeartbeat {
 public:
  using Gloo = c10d::ProcessGroupGloo;

  // All ranks of `gloo` must create one.
  GlooHeartbeat(c10::intrusive_ptr<Gloo> gloo, std::chrono::milliseconds timeout);
  ~GlooHeartbeat();
  GlooHeartbeat(const GlooHeartbeat&) = delete;
  GlooHeartbeat& operator=(const GlooHeartbeat&) = delete;

  // Returns the rank that is silent, if there is one. May be called from any thread.
  std::optional<int64_t> silent() const;
  // Returns a rank whose connection is closed (which is not silence), if there is one. May be called from any
  // thread.
  std::optional<int64_t> closed() const;

 private:
  struct Peer {
    std::atomic<int64_t> asked_ms{kNever};  // since when an answer is due
    std::atomic<bool> is_closed{false};
    c10::intrusive_ptr<c10d::Work> sent, received;
    std::thread thread;
  };
  static constexpr int64_t kNever = INT64_MAX;

  bool is_late(int64_t asked, int64_t now) const;
  void end();
  void run(int64_t number, Peer& peer);
  bool exchange(int64_t number, Peer& peer);

  c10::intrusive_ptr<Gloo> gloo_;
  std::chrono::milliseconds timeout_, interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::map<int64_t, Peer> peers_;
};

}  // namespace tessera::comm
