// How much memory this process has.
#pragma once

#include <unistd.h>

#include <cstdlib>  // says whether this is glibc
#include <fstream>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tessera {

// Of what it uses: freed memory goes back to the kernel first.
inline double resident_megabytes() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
  std::ifstream status("/proc/self/statm");
  double all = 0, resident = 0;
  status >> all >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

}  // namespace tessera
