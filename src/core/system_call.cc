#include "core/system_call.h"

#include <sys/resource.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace tessera {

bool is_lack_of_resources(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return true;
  const auto* const of_system = dynamic_cast<const std::system_error*>(&error);
  return of_system && (of_system->code() == std::errc::not_enough_memory ||
                       of_system->code() == std::errc::resource_unavailable_try_again);
}

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
