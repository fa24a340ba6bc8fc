#include "core/device.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace tessera {
namespace {

thread_local std::optional<c10::DeviceType> meta_stands_for;
thread_local bool constants_are_shapes = false;

// NCCL 2.30 and later lets ranks share a GPU if this variable is set, which is meant for experiments.
bool ranks_share_gpus() {
  const char* const value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value && std::string_view(value) == "1";
}

}  // namespace

MetaStandsFor::MetaStandsFor(c10::DeviceType kind) : before_(std::exchange(meta_stands_for, kind)) {}

MetaStandsFor::~MetaStandsFor() {
  meta_stands_for = before_;
}

ConstantsAreShapes::ConstantsAreShapes(bool are_shapes)
    : before_(std::exchange(constants_are_shapes, are_shapes)) {}

ConstantsAreShapes::~ConstantsAreShapes() {
  constants_are_shapes = before_;
}

at::Tensor as_constant(at::Tensor x) {
  return constants_are_shapes ? at::empty_like(x, x.options().device(at::kMeta)) : std::move(x);
}

bool is_for_cpu(c10::Device device) {
  return device.is_cpu() || (device.is_meta() && meta_stands_for == c10::DeviceType::CPU);
}

c10::Device use_device(c10::Device device, int64_t fallback) {
  if (device.is_cpu()) return device;
  const auto count = static_cast<int64_t>(at::getNumGPUs());
  if (count == 0) {
    usage_error(field("device"),
                "no GPU can be used: this libtorch has no CUDA or finds no driver; use {} cpu",
                field("device"));
  }
  if (ranks_share_gpus()) fallback %= count;
  const int64_t index = device.has_index() ? device.index() : fallback;
  if (index >= count) {
    if (device.has_index())
      usage_error(field("device"), "'{}': this host has {} GPUs, from cuda:0", device.str(), count);
    usage_error(field("device"),
                "rank {} of this host needs a GPU of its own, and there are {}; use fewer ranks", index,
                count);
  }
  const c10::Device chosen(device.type(), static_cast<c10::DeviceIndex>(index));
  c10::impl::VirtualGuardImpl(chosen.type()).setDevice(chosen);
  // By default, cuDNN's convolutions silently round fp32 to the 10 bits of TF32.
  at::globalContext().setAllowTF32CuDNN(false);
  return chosen;
}

at::Tensor upload(const at::Tensor& x, c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return x.to(device);
  return x.pin_memory().to(device, x.scalar_type(), /*non_blocking=*/true);
}

QueueMark::QueueMark(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return;
  event_.emplace(device.type());
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

bool QueueMark::is_reached() const {
  return !event_ || event_->query();
}

}  // namespace tessera
