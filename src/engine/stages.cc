#include "engine/stages.h"

#include <utility>

namespace tessera::engine {

Stages::Stages(comm::Group world, comm::Group replicas, const Observer& observer)
    : world_(std::move(world)),
      observer_(observer),
      is_wished_to_end_(observer.cancelled),
      of_all_(world_),
      of_replicas_(std::move(replicas)) {
  observer_.cancelled = [this] { return of_all_.ask(is_wished_to_end_); };
}

void Stages::settle(const std::exception_ptr& failure) {
  std::exception_ptr verdict;
  try {
    of_replicas_.finish();
    verdict = of_all_.settle(failure);
  } catch (...) {
    if (failure) std::rethrow_exception(failure);
    throw;
  }
  if (verdict) throw SettledEnd{verdict};
}

}  // namespace tessera::engine
