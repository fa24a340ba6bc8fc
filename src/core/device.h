// Support for devices other than the CPU, independent of their kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>

namespace tessera {

// Makes `device` the current device of this thread. A GPU without an index gets the index `fallback`. Returns
// the device with its index. Initialises CUDA, so processes must not be forked afterwards. Throws
// Error(kUsage) if there is no such GPU.
c10::Device use_device(c10::Device device, int64_t fallback);

// While it lives, meta tensors of this thread stand for tensors of a kind of device, so that a run on shapes
// alone takes the same paths as a run on that device.
class MetaStandsFor {
 public:
  explicit MetaStandsFor(c10::DeviceType kind);
  ~MetaStandsFor();
  MetaStandsFor(const MetaStandsFor&) = delete;
  MetaStandsFor& operator=(const MetaStandsFor&) = delete;

 private:
  std::optional<c10::DeviceType> before_;
};
// While it lives, constants that this thread computes on the host may have only shapes, because nobody reads
// them: positions of a large picture take longer than the rest of a run on shapes.
class ConstantsAreShapes {
 public:
  explicit ConstantsAreShapes(bool are_shapes);
  ~ConstantsAreShapes();
  ConstantsAreShapes(const ConstantsAreShapes&) = delete;
  ConstantsAreShapes& operator=(const ConstantsAreShapes&) = delete;

 private:
  bool before_;
};
// Returns the constant, or its shape on the meta device if that is enough.
at::Tensor as_constant(at::Tensor x);

// Whether tensors are on the CPU, or stand for such tensors.
bool is_for_cpu(c10::Device device);

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
