#include "core/system_call.h"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace tessera {

std::string system_reason(int code) {
  std::string text = std::generic_category().message(code);
  if (code == EFBIG) return text + " (ulimit -f)";
  if (code == EMFILE) return text + " (ulimit -n)";
  return text;
}

void allow_many_descriptors() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace tessera
