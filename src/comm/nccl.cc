#include "comm/nccl.h"

#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#endif

#include "core/error.h"

namespace tessera::comm {

#ifdef USE_C10D_NCCL

bool has_nccl() {
  return true;
}

void prepare_nccl() {
  // By default c10d ends the process with a stack trace when a message is late or lost. This program handles
  // that itself (see device_fabric.h).
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
}

MakeCommunicator nccl_communicators(const c10::intrusive_ptr<c10d::Store>& store,
                                    std::chrono::milliseconds timeout) {
  using Nccl = c10d::ProcessGroupNCCL;
  return [store, timeout](const std::string& name, int rank, int size, at::Device device) {
    try {
      const auto options = Nccl::Options::create();
      options->timeout = timeout;
      const auto nccl =
          c10::make_intrusive<Nccl>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, options);
      nccl->eagerConnectSingleDevice(device);
      return c10::intrusive_ptr<c10d::Backend>(nccl);
    } catch (const std::exception& error) {
      const std::string what = error.what();
      throw Error(ErrorKind::kPeer, "NCCL",
                  fmt::format("cannot connect {} with {} others ({}): {}", device.str(), size - 1, name,
                              what.substr(0, what.find('\n'))));
    }
  };
}

#else

bool has_nccl() {
  return false;
}

void prepare_nccl() {}

MakeCommunicator nccl_communicators(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                    std::chrono::milliseconds /*timeout*/) {
  TESSERA_CHECK(false, "built without NCCL");
}

#endif

}  // namespace tessera::comm
