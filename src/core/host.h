// What the host provides: the instruction sets of its processor; the threads that compute on it, which are
// OpenMP's for ATen, oneDNN and MKL alike; and its memory.
//
// TESSERA_MAX_ISA=avx2|avx512|avx512_bf16 in the environment limits everything, libraries included, to that
// instruction set, so that any machine can test and time the code for older processors. It has no effect on
// processors other than x86, or if the processor supports less than it names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace tessera {

// Instruction sets of x86 for which there are kernels; each includes those before it.
enum class Isa {
  kBaseline,    // SSE2, which every x86-64 has; all other architectures
  kAvx2,        // with FMA and F16C (x86-64-v3)
  kAvx512,      // F, BW, CD, DQ, VL (x86-64-v4)
  kAvx512Bf16,  // bf16 products
  kAmx,         // bf16 tiles
};

// Returns the instruction set that kernels may use: the processor's, capped. Throws Error(kUsage) if the
// value of TESSERA_MAX_ISA is unknown.
Isa cpu_isa();

// Whether the processor multiplies bf16 in hardware (AVX512-BF16 or AMX on x86, BF16 on Arm).
bool cpu_has_bf16();

// Passes TESSERA_MAX_ISA on to ATen, oneDNN and MKL by overwriting their environment variables; does nothing
// if it is not set or does not name less than the processor supports. Call it first in main(): libraries read
// their variables only once, at first use, and other threads may read the environment. Throws Error(kUsage)
// as cpu_isa() does.
void cap_libraries();

// Calls each of MKL's vector functions that ATen uses once; later calls do nothing. Call it before several
// threads compute: MKL chooses a function's code in its first call, and if several threads make that call at
// the same time, one of them may run code with relative errors of 1e-4 (pytorch/pytorch#188792; oneMKL before
// 2025.0). Thread-safe.
void make_first_calls();

// Sets the number of threads with which the calling thread computes from now on, and returns it: `wanted`, or
// fewer if OpenMP or the system allows no more (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS, a limit on processes
// or on memory). OpenMP does not change the number afterwards, whatever OMP_DYNAMIC says. Call it before
// anything computes: oneDNN divides its work among as many threads as are set, and what missing ones should
// have computed is never written.
int set_threads(int wanted);

// While it lives, the calling thread computes alone, so that OpenMP starts no threads. These do not survive a
// fork, and a forked process would wait for them forever.
class ComputesAlone {
 public:
  ComputesAlone();
  ~ComputesAlone();
  ComputesAlone(const ComputesAlone&) = delete;
  ComputesAlone& operator=(const ComputesAlone&) = delete;

 private:
  int before_;
};

inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

struct MemoryLimit {
  std::string name;                 // "the machine", "the control group /user"
  uint64_t most = kUnlimited;       // bytes that cannot be exceeded, swap included
  uint64_t available = kUnlimited;  // bytes that are free now, or can be freed without loss
};

// Returns all limits that are set. `root` is the folder with /proc and /sys, for tests.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& root = "/");

// Returns the memory of the machine, or less if a control group limits it, in bytes. It does not depend on
// how much of it is in use.
uint64_t total_memory(const std::filesystem::path& root = "/");

// Returns how many processes of this process's control group the kernel has killed for lack of memory; if no
// group counts them, those of the machine.
uint64_t memory_kills(const std::filesystem::path& root = "/");

}  // namespace tessera
