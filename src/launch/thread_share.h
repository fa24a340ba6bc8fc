// Fits the number of threads that compute to the cores that other processes leave. Threads that share a piece
// of work wait for the slowest of them, and spin meanwhile: where two programs have as many threads each as
// there are cores, both take many times as long as one after the other. The
// project's kernels compute each result on one thread, but for a group norm's sums, whose order in double
// precision changes. One and two threads gave the same bits with the image and video models that ship.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace tessera::launch {

// What happened since the last look, and now.
struct CoreUse {
  double waiting = 0;  // share of their time that the threads were able to run and had no core, 0 to 1
  int64_t idle = 0;    // cores that nothing runs on, besides those of this process's threads
};

// Returns how many threads should compute from now on, from 1 to `most`.
int64_t fitting_threads(int64_t now, int64_t most, const CoreUse& use);

class ThreadShare {
 public:
  // The number of threads at this time (at::get_num_threads()) is the most. The destructor sets it again.
  ThreadShare();
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

  // Sets the number of threads for what follows. Call it between pieces of work, on the thread that computes.
  // Does nothing where the kernel does not say how long threads wait.
  void fit();

 private:
  struct Look {
    std::chrono::steady_clock::time_point time;
    double waited_seconds;
  };
  static std::optional<Look> look();

  int64_t most_, threads_;
  double calm_ = 0;  // more threads run when it reaches 1
  std::optional<Look> last_;
};

}  // namespace tessera::launch
