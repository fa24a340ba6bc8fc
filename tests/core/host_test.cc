#include "core/host.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace tessera {
namespace {

TESSERA_INLINE void nothing(int /*unused*/) {}
using Code = kernels::KernelCode<nothing>;

struct Set {
  std::string name;                // of TESSERA_MAX_ISA
  std::vector<std::string> flags;  // of Linux, besides those of the rows before
  Isa isa;
  void (*code)(int);
  std::string aten;
};

const std::vector<Set>& sets() {
  static const std::vector<Set> all = {
      {"", {}, Isa::kBaseline, &Code::baseline, "DEFAULT"},
      {"avx2", {"avx2", "fma", "f16c"}, Isa::kAvx2, &Code::avx2, "AVX2"},
      {"avx512",
       {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
       Isa::kAvx512,
       &Code::avx512,
       "AVX512"},
      {"avx512_bf16", {"avx512_bf16"}, Isa::kAvx512Bf16, &Code::avx512, "AVX512"},
      {"amx", {"amx_bf16"}, Isa::kAmx, &Code::avx512, "AVX512"}};
  return all;
}

// What the processor has, as the kernel of the system says.
std::set<std::string> processor_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line);
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

// The set that is to be used: the last that the processor has and that is not above the cap.
const Set& expected_set() {
  const std::set<std::string> flags = processor_flags();
  const char* const cap = std::getenv("TESSERA_MAX_ISA");
  const Set* last = &sets().front();
  for (const Set& set : sets()) {
    const bool has = std::all_of(set.flags.begin(), set.flags.end(),
                                 [&](const std::string& flag) { return flags.contains(flag); });
    if (!has) break;
    last = &set;
    if (cap && set.name == cap) break;
  }
  return *last;
}

// `make test` runs this without a cap and under caps.
TEST(Cpu, KernelsAndAtenTakeTheInstructionSetThatIsAskedFor) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "instruction sets are those of x86";
#endif
  const Set& expected = expected_set();
  EXPECT_EQ(cpu_isa(), expected.isa) << expected.name;
  EXPECT_EQ(Code::chosen(), expected.code) << expected.name;
  EXPECT_EQ(at::get_cpu_capability(), expected.aten);
  EXPECT_EQ(cpu_has_bf16(), expected.isa >= Isa::kAvx512Bf16);
}

TEST(Threads, AreAsManyAsAskedFor) {
  EXPECT_EQ(set_threads(3), 3);
  EXPECT_EQ(at::get_num_threads(), 3);
  EXPECT_EQ(set_threads(1), 1);
  EXPECT_EQ(at::get_num_threads(), 1);
}

// In the child, no thread's stack fits into the addresses that are left. OpenMP would end it with exit
// code 1.
TEST(ThreadsDeathTest, AreThoseThatTheSystemStarts) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends a program that has no addresses left";
#endif
  const auto compute = [] {
    rlimit stack = {};
    ::getrlimit(RLIMIT_STACK, &stack);
    const rlimit none = {1, 1};
    ::setrlimit(RLIMIT_AS, &none);
    ::_exit(set_threads(200) == 1 && at::get_num_threads() == 1 ? 0 : 2);
  };
  EXPECT_EXIT(compute(), ::testing::ExitedWithCode(0), "");
}

TEST(Threads, AreOneWhileAProcessThatForksComputesAlone) {
  at::set_num_threads(2);
  {
    const ComputesAlone alone;
    EXPECT_EQ(at::get_num_threads(), 1);
  }
  EXPECT_EQ(at::get_num_threads(), 2);
  at::set_num_threads(1);
}

#ifdef _OPENMP
TEST(Threads, AreThoseOfTheTeamThatOpenMpMakes) {
  omp_set_max_active_levels(0);
  EXPECT_EQ(set_threads(3), 1);
  EXPECT_EQ(at::get_num_threads(), 1);
  omp_set_max_active_levels(1);
  omp_set_dynamic(1);
  EXPECT_EQ(set_threads(2), 2);
  EXPECT_EQ(omp_get_dynamic(), 0);
  set_threads(1);
}
#endif

}  // namespace
}  // namespace tessera
