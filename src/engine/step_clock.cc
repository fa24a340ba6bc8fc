#include "engine/step_clock.h"

#include <thread>

#include "comm/collectives.h"

namespace tessera::engine {

void StepClock::wait_for(const QueueMark& mark) const {
  constexpr auto kLook = std::chrono::microseconds(20);
  while (!mark.is_reached()) {
    comm::require_alive(world_);
    std::this_thread::sleep_for(kLook);
  }
}

void StepClock::ended(bool waits, const std::function<void(int64_t under_way)>& reached) {
  constexpr size_t kBehind = 1;
  under_way_.emplace_back(device_);
  if (waits) comm::synchronize(world_);
  while (!under_way_.empty() && (under_way_.front().is_reached() || waits || under_way_.size() > kBehind)) {
    wait_for(under_way_.front());
    under_way_.pop_front();
    const auto now = std::chrono::steady_clock::now();
    seconds_.push_back(std::chrono::duration<double>(now - start_).count());
    reached(static_cast<int64_t>(under_way_.size()));
    start();  // the time spent in reached() is not part of the next step
  }
}

}  // namespace tessera::engine
