#include "core/cpu.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <cpuinfo.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace tessera {
namespace {

// Holds an instruction set and its name in each library's environment variable.
struct Cap {
  Isa isa;
  const char *name, *aten, *onednn, *mkl;
};

// MKL follows its variable on Intel's processors; on AMD's it uses at most AVX2 in any case (seen with MKL
// 2024.2 on Zen 5). There is no cap below AVX2, because oneDNN 3.12's SSE4.1 convolutions crash with a
// segmentation fault.
constexpr Cap kCaps[] = {
    {Isa::kAvx2, "avx2", "avx2", "AVX2", "AVX2"},
    {Isa::kAvx512, "avx512", "avx512", "AVX512_CORE", "AVX512"},
    {Isa::kAvx512Bf16, "avx512_bf16", "avx512", "AVX512_CORE_BF16", "AVX512"},
};

// Returns nullptr if no cap is set.
const Cap* wanted_cap() {
  const char* const value = std::getenv("TESSERA_MAX_ISA");
  if (!value) return nullptr;
  for (const Cap& cap : kCaps) {
    if (std::string_view(value) == cap.name) return &cap;
  }
  usage_error("TESSERA_MAX_ISA", "expected avx2, avx512 or avx512_bf16, got '{}'", value);
}

Isa processor_isa() {
  if (!cpuinfo_initialize() || !cpuinfo_has_x86_avx2() || !cpuinfo_has_x86_fma3() || !cpuinfo_has_x86_f16c())
    return Isa::kBaseline;
  if (!cpuinfo_has_x86_avx512f() || !cpuinfo_has_x86_avx512bw() || !cpuinfo_has_x86_avx512cd() ||
      !cpuinfo_has_x86_avx512dq() || !cpuinfo_has_x86_avx512vl())
    return Isa::kAvx2;
  if (!cpuinfo_has_x86_avx512bf16()) return Isa::kAvx512;
  return cpuinfo_has_x86_amx_bf16() ? Isa::kAmx : Isa::kAvx512Bf16;
}

// Holds the attributes with which OpenMP would start a thread.
struct Attributes {
  Attributes() {
    ::pthread_attr_init(&value);
    if (const size_t bytes = stack_bytes()) ::pthread_attr_setstacksize(&value, bytes);
  }
  ~Attributes() { ::pthread_attr_destroy(&value); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  // Reads the size that the environment gives, in KiB or with a unit. Returns 0 if it gives none.
  static size_t stack_bytes() {
    for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
      const char* const text = std::getenv(name);
      if (!text) continue;
      char* unit = nullptr;
      const size_t count = std::strtoull(text, &unit, 10);
      while (std::isspace(static_cast<unsigned char>(*unit)) != 0) ++unit;
      const size_t power =
          *unit == '\0' ? 1 : std::string_view("bkmg").find(static_cast<char>(std::tolower(*unit)));
      return power < 4 ? count << (10 * power) : 0;
    }
    return 0;
  }

  pthread_attr_t value;
};

void* wait_for_end(void* ends) {
  static_cast<const std::atomic<bool>*>(ends)->wait(false);
  return nullptr;
}

// Returns how many of `wanted` threads, this one included, the system starts. OpenMP ends the program if it
// cannot start them all.
int startable_threads(int wanted) {
  const Attributes attributes;
  std::atomic<bool> ends = false;
  std::vector<pthread_t> others;
  for (pthread_t other; static_cast<int>(others.size()) + 1 < wanted; others.push_back(other)) {
    if (::pthread_create(&other, &attributes.value, wait_for_end, &ends) != 0) break;
  }
  ends = true;
  ends.notify_all();
  for (const pthread_t other : others) ::pthread_join(other, nullptr);
  return static_cast<int>(others.size()) + 1;
}

int team_size() {
  int size = 1;
#ifdef _OPENMP
#pragma omp parallel
#pragma omp single
  size = omp_get_num_threads();
#endif
  return size;
}

}  // namespace

Isa cpu_isa() {
  static const Isa isa = [] {
    const Cap* const cap = wanted_cap();
    return cap ? std::min(cap->isa, processor_isa()) : processor_isa();
  }();
  return isa;
}

bool cpu_has_bf16() {
  static const bool arm = cpuinfo_initialize() && cpuinfo_has_arm_bf16();
  return arm || cpu_isa() >= Isa::kAvx512Bf16;
}

void cap_libraries() {
  const Cap* const cap = wanted_cap();
  // ATen does not check that the processor has what its variable names; it would crash with an illegal
  // instruction.
  if (!cap || cap->isa >= processor_isa()) return;
  setenv("ATEN_CPU_CAPABILITY", cap->aten, 1);
  setenv("ONEDNN_MAX_CPU_ISA", cap->onednn, 1);
  setenv("MKL_ENABLE_INSTRUCTIONS", cap->mkl, 1);
}

void make_first_calls() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, dtype);
      for (const auto function :
           {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc, at::erfinv, at::exp, at::log, at::log10,
            at::log2, at::sin, at::sqrt, at::tan, at::tanh, at::trunc})
        function(x);
    }
  });
}

int set_threads(int wanted) {
#ifdef _OPENMP
  omp_set_dynamic(0);
#endif
  at::set_num_threads(startable_threads(wanted));
  if (const int team = team_size(); team < at::get_num_threads()) at::set_num_threads(team);
  return at::get_num_threads();
}

ComputesAlone::ComputesAlone() : before_(at::get_num_threads()) {
  at::set_num_threads(1);
}

ComputesAlone::~ComputesAlone() {
  at::set_num_threads(before_);
}

}  // namespace tessera
