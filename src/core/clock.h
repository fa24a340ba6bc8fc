// Deadlines, and durations as text.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace tessera {

using Deadline = std::chrono::steady_clock::time_point;

// The time until the deadline, at least 1 ms: many interfaces take zero as "no limit".
inline std::chrono::milliseconds time_left(Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

// "1.5 s"
inline std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

}  // namespace tessera
