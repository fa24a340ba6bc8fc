// What system calls have in common: interruptions, errors, deadlines, descriptors.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

namespace tessera {

// Makes the call again as long as a signal interrupts it. Like the call, returns a negative number if it
// fails, with the reason in errno.
template <typename Call>
auto uninterrupted(const Call& call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// Whether the system refused memory, or a process or thread (which has the same error number as a lack of
// memory for its stack).
bool is_lack_of_resources(const std::exception& error);

// Returns the text of an error number, with the user's limit that may be the reason: "File too large (ulimit
// -f)".
std::string system_reason(int code);

// Raises the number of files that this process may open to the maximum that it may set itself: ranks share a
// socket with every other rank, and shells allow few by default.
void allow_many_descriptors();

using Deadline = std::chrono::steady_clock::time_point;

// The time until the deadline, at least 1 ms: many interfaces take zero as "no limit".
inline std::chrono::milliseconds time_left(Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

// A file descriptor that is closed on destruction.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace tessera
