// What system calls have in common.
#pragma once

#include <cerrno>
#include <exception>
#include <string>

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

// Whether the system refused memory, or a process or thread (with the same error number as for a lack of
// memory for its stack).
bool is_lack_of_resources(const std::exception& error);

// Returns the text of an error number, with the limit of the user that may be behind it: "File too large
// (ulimit -f)".
std::string system_reason(int code);

// Raises the number of files that this process may have open to the most that it may give itself: ranks share
// a socket with every other rank, and shells allow few at first.
void allow_many_descriptors();

}  // namespace tessera
