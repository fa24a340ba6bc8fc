// A device that no GPU is needed for, and that is as strict as one: its memory may be touched by its own
// operations alone. Code of the host that reads or writes it through a pointer ends the process (SIGSEGV),
// or, in a system call, gets EFAULT. Operations are carried out by the CPU's kernels, at once and in order,
// so that results can be compared; those that a GPU has no kernel for are not told apart.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>

namespace tessera {

inline constexpr at::DeviceType kStrict = at::kPrivateUse1;

// What passed between host and device, and how often the host stood still for it.
struct StrictTraffic {
  std::atomic<int64_t> synchronizations = 0;  // of the whole device
  std::atomic<int64_t> blocking_uploads = 0;  // from memory that is not pinned, or with non_blocking unset
  std::atomic<int64_t> queued_uploads = 0;
  std::atomic<int64_t> downloads = 0;              // copies to the host, and single numbers that it asked for
  std::atomic<int64_t> operations = 0;             // kernels, where each operation is one
  std::atomic<int64_t> bytes = 0, most_bytes = 0;  // of memory in use; the most that were
};

// The device, which is there from the first call on.
at::Device strict_device();
StrictTraffic& strict_traffic();

// As the host sees x, a tensor of the device: for what stands in for a device's own code.
at::Tensor strict_as_host(const at::Tensor& x);

}  // namespace tessera
