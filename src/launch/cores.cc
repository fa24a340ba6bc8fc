#include "launch/cores.h"

#include <sched.h>
#include <unistd.h>

namespace tessera::launch {
namespace {

constexpr int kMostCores = 1 << 14;

struct CpuSet {
  CpuSet() : set(CPU_ALLOC(kMostCores)) { CPU_ZERO_S(bytes, set); }
  ~CpuSet() { CPU_FREE(set); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  size_t bytes = CPU_ALLOC_SIZE(kMostCores);
  cpu_set_t* set;
};

}  // namespace

std::vector<int> share_of(const std::vector<int>& cores, int64_t rank, int64_t ranks, int64_t threads) {
  const int64_t each = static_cast<int64_t>(cores.size()) / ranks;
  if (each < threads) return {};
  return {cores.begin() + rank * each, cores.begin() + (rank + 1) * each};
}

std::vector<int> allowed_cores() {
  const CpuSet allowed;
  std::vector<int> cores;
  if (::sched_getaffinity(0, allowed.bytes, allowed.set) != 0) return cores;
  for (int core = 0; core < kMostCores; ++core) {
    if (CPU_ISSET_S(static_cast<size_t>(core), allowed.bytes, allowed.set)) cores.push_back(core);
  }
  return cores;
}

bool all_cores_allowed() {
  return static_cast<int64_t>(allowed_cores().size()) == ::sysconf(_SC_NPROCESSORS_ONLN);
}

void pin_to(const std::vector<int>& cores) {
  if (cores.empty()) return;
  const CpuSet chosen;
  for (const int core : cores) CPU_SET_S(static_cast<size_t>(core), chosen.bytes, chosen.set);
  // A failure only costs speed.
  ::sched_setaffinity(0, chosen.bytes, chosen.set);
}

}  // namespace tessera::launch
