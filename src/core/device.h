// Devices beside the CPU, whatever their kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>

namespace tessera {

// Makes `device` the one on which this thread's work and memory lie. A GPU without a number is number
// `fallback`. Returns the device with its number. Starts CUDA: no process may be forked after it. Throws
// Error(kUsage) when there is no such GPU.
c10::Device use_device(c10::Device device, int64_t fallback);

// x, of the host, on `device`, without waiting for what is queued there: a copy from pinned memory.
at::Tensor upload(const at::Tensor& x, c10::Device device);

// The end of what a device's current stream has queued by now. On the CPU everything is done already.
class QueueMark {
 public:
  explicit QueueMark(c10::Device device);
  bool is_reached() const;

 private:
  std::optional<c10::Event> event_;
};

}  // namespace tessera
