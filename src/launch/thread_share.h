// Adjusts the number of computing threads to the cores that other processes leave. Threads that share a piece
// of work wait for the slowest of them, and spin meanwhile: if two programs each have as many threads as
// there are cores, both take many times as long as one after the other. The project's kernels compute each
// result on one thread, except for a group norm's sums in double precision, whose order changes. One and two
// threads gave the same bits with the image and video models that ship.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace tessera::launch {

// What happened since the last look, and the state now.
struct CoreUse {
  double waiting = 0;  // share of their time in which the threads could have run but had no core, 0 to 1
  int64_t idle = 0;    // cores that run nothing, besides those of this process's threads
};

// Returns how many threads should compute from now on, from 1 to `most`.
int64_t fitting_threads(int64_t now, int64_t most, const CoreUse& use);

class ThreadShare {
 public:
  // The number of threads at construction (at::get_num_threads()) is the maximum. The destructor restores it.
  ThreadShare();
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

  // Sets the number of threads for the work that follows. Call it between pieces of work, on the thread that
  // computes. Does nothing if the kernel does not report how long threads wait.
  void fit();

 private:
  struct Look {
    std::chrono::steady_clock::time_point time;
    double waited_seconds;
  };
  static std::optional<Look> look();

  int64_t most_, threads_;
  double calm_ = 0;  // more threads are used when it reaches 1
  std::optional<Look> last_;
};

}  // namespace tessera::launch
