// A device that needs no GPU and is as strict as one: only its operations may access its memory. Host code
// that reads or writes it through a pointer ends the process (SIGSEGV) or, in a system call, gets EFAULT. The
// CPU's kernels carry out the operations at once and in order, so that results can be compared. The device
// also accepts operations for which a GPU has no kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace tessera {

inline constexpr at::DeviceType kStrict = at::kPrivateUse1;

// Counts the transfers between host and device, and how often the host waits for them.
struct StrictTraffic {
  std::atomic<int64_t> synchronizations = 0;  // of the whole device
  std::atomic<int64_t> blocking_uploads = 0;  // from memory that is not pinned, or with non_blocking unset
  std::atomic<int64_t> queued_uploads = 0;
  std::atomic<int64_t> downloads = 0;              // copies to the host, and single numbers that it reads
  std::atomic<int64_t> operations = 0;             // kernels, if each operation is one
  std::atomic<int64_t> bytes = 0, most_bytes = 0;  // memory in use now, and its peak
};

// Returns the device, which the first call registers.
at::Device strict_device();
StrictTraffic& strict_traffic();

// Has `wait` called by each allocation of the device's memory on this thread. CUDA may wait there until its
// kernels have ended, those of posted messages as well.
void before_strict_allocations(std::function<void()> wait);

// Returns a view of x, a tensor of the device, for the host: for tests that stand in for device code.
at::Tensor strict_as_host(const at::Tensor& x);

}  // namespace tessera
