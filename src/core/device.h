// Support for devices other than the CPU, independent of their kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>

namespace tessera {

// Makes `device` the current device of this thread. A GPU without an index gets the index `fallback`. Returns
// the device with its index. Initialises CUDA, so no process may be forked after it. Throws Error(kUsage) if
// there is no such GPU.
c10::Device use_device(c10::Device device, int64_t fallback);

// Copies `x` from the host to `device`, from pinned memory, so that it does not wait for work queued there.
at::Tensor upload(const at::Tensor& x, c10::Device device);

// Marks the end of what a device's current stream has queued so far. On the CPU it is always reached.
class QueueMark {
 public:
  explicit QueueMark(c10::Device device);
  bool is_reached() const;

 private:
  std::optional<c10::Event> event_;
};

}  // namespace tessera
