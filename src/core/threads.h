// The threads that compute, which are those of OpenMP for ATen, oneDNN and MKL alike.
#pragma once

namespace tessera {

// Sets the number of threads with which the calling thread computes from now on, and returns it: `wanted`, or
// fewer where OpenMP or the system gives no more (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS, a limit on
// processes or on memory). OpenMP does not change the number afterwards, whatever OMP_DYNAMIC says. Call it
// before anything computes: oneDNN divides its work among as many threads as are set, and what missing ones
// should have computed is never written.
int set_threads(int wanted);

// While it lives, the calling thread computes alone, so that OpenMP starts no threads. They do not survive a
// fork, after which a process would wait for them for ever.
class ComputesAlone {
 public:
  ComputesAlone();
  ~ComputesAlone();
  ComputesAlone(const ComputesAlone&) = delete;
  ComputesAlone& operator=(const ComputesAlone&) = delete;

 private:
  int before_;
};

}  // namespace tessera
