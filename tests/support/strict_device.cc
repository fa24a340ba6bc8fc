#include "tests/support/strict_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace tessera {
namespace {

// Allocates memory in pairs of equal size: protected addresses, which tensors hold, and behind them the
// addresses of the actual numbers.
thread_local std::function<void()> before_allocation;

class StrictAllocator final : public c10::DeviceAllocator {
 public:
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex /*device*/) override {
    return {size_t{1} << 34, size_t{1} << 34};
  }

  c10::DataPtr allocate(size_t bytes) override {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t size = (bytes + page - 1) / page * page;
    if (size == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, strict_device()};
    if (before_allocation) before_allocation();
    void* const first = ::mmap(nullptr, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(first != MAP_FAILED &&
                    ::mprotect(static_cast<char*>(first) + size, size, PROT_READ | PROT_WRITE) == 0,
                "no memory");
    const std::lock_guard lock(mutex_);
    sizes_[first] = size;
    StrictTraffic& traffic = strict_traffic();
    traffic.bytes += static_cast<int64_t>(size);
    traffic.most_bytes = std::max<int64_t>(traffic.most_bytes, traffic.bytes);
    return {first, first, &StrictAllocator::free, strict_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &StrictAllocator::free; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not asked for"); }

  // Returns the address of the numbers for the protected memory that begins at `first`.
  void* behind(const void* first) {
    if (first == nullptr) return nullptr;
    const std::lock_guard lock(mutex_);
    return static_cast<char*>(const_cast<void*>(first)) + sizes_.at(first);
  }

  static StrictAllocator& instance() {
    static auto* const allocator = new StrictAllocator;  // never destroyed: tensors may outlive statics
    return *allocator;
  }

 private:
  static void free(void* first) {
    StrictAllocator& self = instance();
    const std::lock_guard lock(self.mutex_);
    const auto entry = self.sizes_.extract(first);
    strict_traffic().bytes -= static_cast<int64_t>(entry.mapped());
    ::munmap(first, 2 * entry.mapped());
  }

  std::mutex mutex_;
  std::map<const void*, size_t> sizes_;
};

// Allocates pinned host memory, from which copies need not block.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::malloc(std::max<size_t>(bytes, 1));
    const std::lock_guard lock(mutex_);
    pinned_.insert(data);
    return {data, data, &PinnedAllocator::free, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::free; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not asked for"); }
  bool holds(const void* data) {
    const std::lock_guard lock(mutex_);
    return pinned_.count(data) > 0;
  }
  static PinnedAllocator& instance() {
    static auto* const allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  static void free(void* data) {
    PinnedAllocator& self = instance();
    const std::lock_guard lock(self.mutex_);
    self.pinned_.erase(data);
    std::free(data);
  }
  std::mutex mutex_;
  std::set<const void*> pinned_;
};

struct StrictHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  // Seeding the host's generator seeds those of all devices. Random numbers only come from the host.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::instance().holds(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::instance(); }
};

struct StrictGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kStrict; }
  c10::Device exchangeDevice(c10::Device) const override { return {kStrict, 0}; }
  c10::Device getDevice() const override { return {kStrict, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = const_cast<StrictGuard*>(this);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }  // all operations finish at once
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override { ++strict_traffic().synchronizations; }
};

bool is_strict(const at::Tensor& x) {
  return x.defined() && x.device().type() == kStrict;
}

at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_generic(sizes, strides, &StrictAllocator::instance(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

// Returns a new tensor of the device with the strides and contents of x, a host tensor.
at::Tensor on_device(const at::Tensor& x) {
  at::Tensor made = new_tensor(x.sizes(), x.strides(), x.scalar_type());
  strict_as_host(made).copy_(x);
  return made;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &StrictAllocator::instance(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return new_tensor(sizes, strides, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  StrictTraffic& traffic = strict_traffic();
  if (!is_strict(to)) {
    ++traffic.downloads;
  } else if (is_strict(from)) {
    ++traffic.operations;
  } else {
    ++(non_blocking && PinnedAllocator::instance().holds(from.storage().data()) ? traffic.queued_uploads
                                                                                : traffic.blocking_uploads);
  }
  at::Tensor host = strict_as_host(to);
  host.copy_(strict_as_host(from));
  return to;
}

at::Scalar number(const at::Tensor& x) {
  ++strict_traffic().downloads;
  return strict_as_host(x).item();
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                       bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  ++strict_traffic().operations;
  const std::optional<at::Tensor> vector = bias ? std::optional(strict_as_host(*bias)) : std::nullopt;
  return on_device(at::convolution(strict_as_host(x), strict_as_host(weight), vector, stride, padding,
                                   dilation, transposed, output_padding, groups));
}

// As with CUDA's kernel, the output is contiguous whatever the input's memory format.
std::tuple<at::Tensor, at::Tensor, at::Tensor> group_norm(const at::Tensor& x,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, int64_t n,
                                                          int64_t c, int64_t size, int64_t groups,
                                                          double eps) {
  ++strict_traffic().operations;
  const auto host = [](const std::optional<at::Tensor>& y) {
    return y ? std::optional(strict_as_host(*y)) : std::nullopt;
  };
  const auto [y, mean, scale] = at::native_group_norm(strict_as_host(x).contiguous(), host(weight),
                                                      host(bias), n, c, size, groups, eps);
  return {on_device(y), on_device(mean), on_device(scale)};
}

// Runs every other operation with the CPU's kernel, over the same memory.
class Fallback {
 public:
  void operator()(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    ++strict_traffic().operations;
    const size_t count = op.schema().arguments().size();
    for (size_t i = 0; i < count; ++i) {
      c10::IValue& value = torch::jit::peek(*stack, i, count);
      value = to_host(value);
    }
    op.callBoxed(stack);
    const auto& returns = op.schema().returns();
    for (size_t i = 0; i < returns.size(); ++i) {
      c10::IValue& value = torch::jit::peek(*stack, i, returns.size());
      const auto* alias = returns[i].alias_info();
      value = to_device(value, alias != nullptr && !alias->isWrite(), op);
    }
  }

 private:
  at::Tensor to_host(const at::Tensor& x) {
    if (!is_strict(x)) return x;
    // An empty tensor may be an output that the operation resizes.
    pairs_.emplace_back(
        x.numel() == 0 ? at::empty(x.sizes(), at::TensorOptions().dtype(x.scalar_type())) : strict_as_host(x),
        x);
    return pairs_.back().first;
  }
  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return to_host(value.toTensor());
    if (value.isDevice() && value.toDevice().type() == kStrict) return at::Device(at::kCPU);
    if (value.isTensorList()) {
      std::vector<at::Tensor> all;
      for (const at::Tensor& x : value.toTensorVector()) all.push_back(to_host(x));
      return all;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> all;
      for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector())
        all.push_back(x ? std::optional(to_host(*x)) : std::nullopt);
      return all;
    }
    return value;
  }

  at::Tensor to_device(const at::Tensor& x, bool is_view, const c10::OperatorHandle& op) {
    if (!x.defined()) return x;
    for (const auto& [host, device] : pairs_) {
      if (!host.is_same(x)) continue;
      if (x.numel() != device.numel()) {
        const at::Tensor grown = on_device(x);
        device.unsafeGetTensorImpl()->set_storage_keep_dtype(grown.storage());
        device.unsafeGetTensorImpl()->set_sizes_and_strides(grown.sizes(), grown.strides());
      }
      return device;
    }
    TORCH_CHECK(!is_view, "the strict device does not know the view ", op.schema().name());
    return on_device(x);
  }
  c10::IValue to_device(const c10::IValue& value, bool is_view, const c10::OperatorHandle& op) {
    if (value.isTensor()) return to_device(value.toTensor(), is_view, op);
    if (value.isTensorList()) {
      std::vector<at::Tensor> all;
      for (const at::Tensor& x : value.toTensorVector()) all.push_back(to_device(x, is_view, op));
      return all;
    }
    return value;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;  // the host's view and the device tensor
};

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Fallback()(op, stack);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, StrictGuard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("_copy_from", &copy_from);
  library.impl("_local_scalar_dense", &number);
  library.impl("convolution_overrideable", &convolution);
  library.impl("native_group_norm", &group_norm);
  // Without this, ATen would compose it from other operations.
  library.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

}  // namespace

at::Device strict_device() {
  [[maybe_unused]] static const bool registered = [] {
    c10::register_privateuse1_backend("strict");
    static auto* const hooks = new StrictHooks;  // libtorch keeps it until the program ends
    at::RegisterPrivateUse1HooksInterface(hooks);
    c10::SetAllocator(kStrict, &StrictAllocator::instance());
    return true;
  }();
  return {kStrict, 0};
}

void before_strict_allocations(std::function<void()> wait) {
  before_allocation = std::move(wait);
}

StrictTraffic& strict_traffic() {
  static StrictTraffic traffic;
  return traffic;
}

at::Tensor strict_as_host(const at::Tensor& x) {
  if (!is_strict(x)) return x;
  char* const data = static_cast<char*>(StrictAllocator::instance().behind(x.storage().data()));
  return at::from_blob(data + x.storage_offset() * static_cast<int64_t>(x.element_size()), x.sizes(),
                       x.strides(), at::TensorOptions().dtype(x.scalar_type()));
}

}  // namespace tessera
