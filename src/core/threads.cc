#include "core/threads.h"

#include <ATen/Parallel.h>

#include <pthread.h>

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

// A thread as OpenMP starts it.
struct Attributes {
  Attributes() {
    ::pthread_attr_init(&value);
    if (const size_t bytes = stack_bytes()) ::pthread_attr_setstacksize(&value, bytes);
  }
  ~Attributes() { ::pthread_attr_destroy(&value); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  // The environment names the size in KiB, or with a unit. Returns 0 if it names none.
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

// How many of `wanted` threads, this one included, the system starts. OpenMP ends the program where it starts
// too few.
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
