#include "comm/gloo_heartbeat.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "comm/heartbeat.h"

namespace tessera::comm {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr int kTag = 0;  // unused by groups, whose tags begin with 1

int64_t now_ms() {
  return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

GlooHeartbeat::GlooHeartbeat(c10::intrusive_ptr<Gloo> gloo, Milliseconds timeout)
    : gloo_(std::move(gloo)), timeout_(timeout), interval_(heartbeat_interval(timeout)) {
  for (int64_t peer = 0; peer < gloo_->getSize(); ++peer) {
    if (peer != gloo_->getRank()) peers_[peer];
  }
  try {
    for (auto& [number, peer] : peers_)
      peer.thread = std::thread([this, number = number, &peer = peer] { run(number, peer); });
  } catch (...) {
    end();  // those that are running
    throw;
  }
}

GlooHeartbeat::~GlooHeartbeat() {
  end();
}

void GlooHeartbeat::end() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    for (auto& [number, peer] : peers_) {
      if (peer.sent) peer.sent->abort();
      if (peer.received) peer.received->abort();
    }
  }
  changed_.notify_all();
  for (auto& [number, peer] : peers_) {
    if (peer.thread.joinable()) peer.thread.join();
  }
}

std::optional<int64_t> GlooHeartbeat::silent() const {
  const int64_t now = now_ms();
  for (const auto& [number, peer] : peers_) {
    if (is_late(peer.asked_ms, now)) return number;
  }
  return std::nullopt;
}

std::optional<int64_t> GlooHeartbeat::closed() const {
  for (const auto& [number, peer] : peers_) {
    if (peer.is_closed) return number;
  }
  return std::nullopt;
}

bool GlooHeartbeat::is_late(int64_t asked, int64_t now) const {
  constexpr int64_t kRounding = 5;
  return asked != kNever && now - asked >= timeout_.count() - kRounding;
}

void GlooHeartbeat::run(int64_t number, Peer& peer) {
  try {
    while (exchange(number, peer)) {
    }
  } catch (const std::exception&) {
    // Either the peer is silent, which silent() derives from asked_ms; or the connection is closed, which is
    // not silence: Gloo reports that to anything that still waits for a message from there.
    if (is_late(peer.asked_ms, now_ms())) return;
    peer.asked_ms = kNever;
    peer.is_closed = true;
  }
}

// Exchanges one byte each way and pauses. Returns false when this object is being destroyed.
bool GlooHeartbeat::exchange(int64_t number, Peer& peer) {
  std::vector<at::Tensor> out = {at::ones({1}, at::kByte)}, in = {at::empty({1}, at::kByte)};
  const int to = static_cast<int>(number);
  {
    const std::lock_guard lock(mutex_);
    if (ends_) return false;
    peer.received = gloo_->recv(in, to, kTag);
    peer.sent = gloo_->send(out, to, kTag);
  }
  const int64_t asked = now_ms();
  peer.asked_ms = asked;
  for (const auto& work : {peer.sent, peer.received}) {
    // Both waits share one timeout. A wait of zero would mean Gloo's own timeout.
    const Milliseconds left = timeout_ - Milliseconds(now_ms() - asked);
    if (!work->wait(std::max(left, Milliseconds(1)))) return false;
  }
  peer.asked_ms = kNever;
  std::unique_lock lock(mutex_);
  peer.sent.reset();
  peer.received.reset();
  return !changed_.wait_for(lock, interval_, [this] { return ends_; });
}

}  // namespace tessera::comm
