#include "parallel/collectives.h"

#include "core/error.h"

namespace tessera::parallel {

at::Tensor all_reduce(const at::Tensor& x, const Group& group) {
  TESSERA_CHECK(group.size == 1, "a group of {} ranks has no transport", group.size);
  return x;
}

}  // namespace tessera::parallel
