// The ends of denoising steps, as the device reaches them.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "comm/group.h"
#include "core/device.h"

namespace tessera::engine {

// The device may be one step behind, so that it always has work, but no more. A step ends when the device has
// computed it.
class StepClock {
 public:
  // Appends the seconds of each step to `seconds`.
  StepClock(const comm::Group& world, at::Device device, std::vector<double>& seconds)
      : world_(world), device_(device), seconds_(seconds) {}

  // Called before the work of a step, to exclude whatever came between it and the previous step.
  void go_on() {
    if (under_way_.empty()) start();
  }
  // Called when all work of a step has been queued. Calls `reached`, for each step that has ended since the
  // last call, with the number of steps that are still under way. If it `waits`, all steps have ended when it
  // returns. Throws Error(kPeer) if a peer is lost, because the device might wait for it.
  void ended(bool waits, const std::function<void(int64_t under_way)>& reached);

 private:
  void start() { start_ = std::chrono::steady_clock::now(); }
  void wait_for(const QueueMark& mark) const;

  const comm::Group& world_;
  at::Device device_;
  std::vector<double>& seconds_;
  std::deque<QueueMark> under_way_;  // ends of steps that the device may not have reached yet
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tessera::engine
