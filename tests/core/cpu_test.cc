#include "core/cpu.h"

#include <ATen/Version.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "ops/kernel.h"

namespace tessera {
namespace {

TESSERA_INLINE void nothing(int /*unused*/) {}

// `make test` runs this without a cap and under caps.
TEST(Cpu, KernelsAndAtenTakeTheInstructionSetThatIsAskedFor) {
  using Code = ops::KernelCode<nothing>;
  const std::map<std::string, std::pair<void (*)(int), std::string>> expected = {
      {"baseline", {&Code::baseline, "DEFAULT"}},
      {"avx2", {&Code::avx2, "AVX2"}},
      {"avx512", {&Code::avx512, "AVX512"}},
      {"avx512_bf16", {&Code::avx512, "AVX512"}}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  std::string best = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") ? "avx512"
                     : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")        ? "avx2"
                                                                                              : "baseline";
#else
  GTEST_SKIP() << "instruction sets are those of x86";
  std::string best;
#endif
  const char* const cap = std::getenv("TESSERA_MAX_ISA");
  // The names sort in the order of the instruction sets, except for "baseline".
  if (cap && best != "baseline" && cap < best) best = cap;
  const auto& [code, aten] = expected.at(best);
  EXPECT_EQ(Code::chosen(), code) << best;
  EXPECT_EQ(at::get_cpu_capability(), aten);
  if (cap && std::string(cap) != "avx512_bf16") {
    EXPECT_FALSE(cpu_has_bf16());
  }
}

}  // namespace
}  // namespace tessera
