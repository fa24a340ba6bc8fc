// Devices beside the CPU, whatever their kind.
#pragma once

#include <c10/core/Device.h>

namespace tessera {

// Makes `device` the one on which this thread's work and memory lie. A GPU without a number is number
// `fallback`. Returns the device with its number. Starts CUDA: no process may be forked after it. Throws
// Error(kUsage) when there is no such GPU.
c10::Device use_device(c10::Device device, int64_t fallback);

// Returns when the device has done all that was queued on it. On the CPU everything is done already.
void synchronize(c10::Device device);

}  // namespace tessera
