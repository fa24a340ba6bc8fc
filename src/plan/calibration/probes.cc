#include "plan/calibration/probes.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <utility>

#include "comm/world.h"
#include "core/device.h"
#include "core/error.h"
#include "ops/activations.h"
#include "ops/attention.h"
#include "ops/conv.h"
#include "ops/group_norm.h"
#include "ops/heads.h"
#include "ops/linear.h"
#include "ops/modulate.h"
#include "plan/hardware/operation_costs.h"
#include "plan/machine.h"
#include "plan/recorder.h"

namespace tessera::plan {
namespace {

constexpr int64_t kMostCopies = 256;
constexpr double kMostFlops = 6e9;              // for the probe of a product; beyond this, the share does not
                                                // change
constexpr double kMostConvolutionFlops = 2e10;  // until images of 256 channels exceed the caches
constexpr int64_t kMostUpsampled = 1 << 21;     // elements of the output of an upsampling convolution
constexpr int64_t kNormGroups = 32, kHeadDim = 64, kVectorWidth = 1024;

class FilledSource final : public weights::Source {
 public:
  bool has(const std::string& /*key*/) const override { return true; }
  at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                  at::ArrayRef<weights::Slice> slices, at::Device device) override {
    return at::full(weights::sliced_shape(key, shape, slices), 0.01,
                    at::TensorOptions().dtype(dtype).device(device));
  }
  at::Tensor stored(const std::string& key, at::IntArrayRef shape) override {
    return load(key, shape, at::kFloat, {}, at::kCPU);
  }
};

// A file in bf16.
class StoredSource final : public weights::Source {
 public:
  explicit StoredSource(at::Tensor weight) : weight_(std::move(weight)) {}
  bool has(const std::string& /*key*/) const override { return true; }
  at::Tensor load(const std::string& /*key*/, at::IntArrayRef /*shape*/, at::ScalarType dtype,
                  at::ArrayRef<weights::Slice> /*slices*/, at::Device /*device*/) override {
    return weight_.to(dtype);
  }
  at::Tensor stored(const std::string& /*key*/, at::IntArrayRef /*shape*/) override { return weight_; }

 private:
  at::Tensor weight_;
};

// The source of a layer's weights.
weights::Scope filled(at::ScalarType dtype, at::Device device) {
  static FilledSource source;
  return {source, {.dtype = dtype, .device = device, .groups = {}}};
}

at::Tensor tensor(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  return at::full(sizes, 0.5, at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor image(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  return tensor(sizes, dtype, device).contiguous(at::MemoryFormat::ChannelsLast);
}

// Layers of equal shape, enough that the caches cannot hold the weights of all. The last shape is kept,
// because probes with other input sizes come next.
template <typename Layer>
class Layers {
 public:
  // `make` makes one with `elements` weights.
  std::shared_ptr<std::vector<Layer>> get(const std::string& shape, at::Device device, int64_t cache_bytes,
                                          int64_t bytes, const std::function<Layer()>& make) {
    if (device.is_meta()) return std::make_shared<std::vector<Layer>>(1, make());
    if (shape == shape_ && kept_) return kept_;
    kept_.reset();
    const int64_t copies = std::clamp<int64_t>(divide_up(2 * cache_bytes, bytes), 2, kMostCopies);
    auto made = std::make_shared<std::vector<Layer>>();
    for (int64_t i = 0; i < copies; ++i) made->push_back(make());
    shape_ = shape;
    kept_ = made;
    return made;
  }

 private:
  std::string shape_;
  std::shared_ptr<std::vector<Layer>> kept_;
};

// Calls `run` with each of the layers in turn.
template <typename Layer>
std::function<void()> in_turns(std::shared_ptr<std::vector<Layer>> layers,
                               std::function<void(const Layer&)> run) {
  return [layers = std::move(layers), run = std::move(run), next = size_t{0}]() mutable {
    run((*layers)[next++ % layers->size()]);
  };
}

// What all probes of a dtype share.
struct Common {
  at::ScalarType dtype;
  int64_t cache_bytes;
  std::shared_ptr<Layers<ops::Linear>> linears = std::make_shared<Layers<ops::Linear>>();
  std::shared_ptr<Layers<ops::Conv2d>> convolutions = std::make_shared<Layers<ops::Conv2d>>();

  int64_t bytes(int64_t elements) const { return elements * static_cast<int64_t>(c10::elementSize(dtype)); }
};

Probe gemm_probe(const Common& of, int64_t rows, int64_t inner, int64_t columns) {
  const auto prepare = [=](at::Device device) {
    const auto made = of.linears->get(fmt::format("{} x {}", inner, columns), device, of.cache_bytes,
                                      of.bytes(inner * columns),
                                      [&] { return ops::Linear(filled(of.dtype, device), inner, columns); });
    return in_turns<ops::Linear>(
        made, [x = tensor({1, rows, inner}, of.dtype, device)](const ops::Linear& layer) { layer(x); });
  };
  return {fmt::format("gemm {} x {} x {}", rows, inner, columns), WorkKind::kGemm, of.dtype, prepare};
}

struct Window {
  int64_t in, out, kernel, stride;
};

// `size` is the output's.
Probe conv_probe(const Common& of, int64_t size, const Window& window) {
  const auto [in, out, kernel, stride] = window;
  const std::string shape = fmt::format("{} x {} by {} x {} / {}", in, out, kernel, kernel, stride);
  const auto prepare = [=, in = in, out = out, kernel = kernel, stride = stride](at::Device device) {
    const auto made = of.convolutions->get(
        shape, device, of.cache_bytes, of.bytes(kernel * kernel * in * out),
        [&] { return ops::Conv2d(filled(of.dtype, device), in, out, kernel, stride, kernel / 2); });
    return in_turns<ops::Conv2d>(made, [x = image({1, in, size * stride, size * stride}, of.dtype, device)](
                                           const ops::Conv2d& layer) { layer(x); });
  };
  return {fmt::format("convolution {}, {} x {}", shape, size, size), WorkKind::kConvolution, of.dtype,
          prepare};
}

// `size` is the output's.
Probe upsample_probe(const Common& of, int64_t size, int64_t channels) {
  const auto prepare = [=](at::Device device) -> std::function<void()> {
    const auto layer = std::make_shared<ops::Upsample2d>(filled(of.dtype, device), channels);
    return [layer, x = image({1, channels, size / 2, size / 2}, of.dtype, device)] { (*layer)(x); };
  };
  return {fmt::format("convolution {} of {} x {} upsampled", channels, size, size), WorkKind::kConvolution,
          of.dtype, prepare};
}

// Queries, keys and values in the form that a layer's product leaves: [B, n, heads * D].
Probe attention_probe(const Common& of, const AttentionWork& work) {
  const auto prepare = [=](at::Device device) -> std::function<void()> {
    const int64_t width = work.heads * work.head_dim;
    const at::Tensor q = tensor({work.batch, work.queries, width}, of.dtype, device);
    const at::Tensor kv = tensor({work.batch, work.keys, 2 * width}, of.dtype, device);
    return [=, heads = work.heads] {
      ops::attention(q, kv.narrow(2, 0, width), kv.narrow(2, width, width), heads);
    };
  };
  return {"attention " + shape_text(work), WorkKind::kAttention, of.dtype, prepare};
}

enum class Elementwise { kModulatedNorm, kGatedAdd, kGroupNorm, kGatedGelu, kAdd, kCopy, kHeadNorm };

// The vector operators of a step, over rows x width elements.
Probe vector_probe(const Common& of, Elementwise what, int64_t rows, int64_t width) {
  static constexpr std::array kNames = {"norm", "gated add", "group norm", "gated gelu",
                                        "add",  "copy",      "head norm"};
  const auto prepare = [=](at::Device device) -> std::function<void()> {
    const at::Tensor x = tensor({1, rows, width}, of.dtype, device);
    const at::Tensor y = tensor({1, rows, width}, of.dtype, device);
    const at::Tensor vector = tensor({1, width}, at::kFloat, device);
    switch (what) {
      case Elementwise::kModulatedNorm:
        return [=] { ops::modulated_layer_norm(x, vector, vector, 1e-6); };
      case Elementwise::kGatedAdd:
        return [y, vector, sum = at::Tensor(x)]() mutable { ops::add_gated_(sum, y, vector); };
      case Elementwise::kGroupNorm: {
        const auto norm = std::make_shared<ops::GroupNorm>(filled(of.dtype, device), width, kNormGroups, 1e-5,
                                                           ops::Activation::kSilu);
        return [norm, z = image({1, width, 1, rows}, of.dtype, device)] { (*norm)(z); };
      }
      case Elementwise::kGatedGelu:
        return [both = tensor({1, rows, 2 * width}, of.dtype, device), width] {
          ops::gated_gelu(both.narrow(2, 0, width), both.narrow(2, width, width));
        };
      case Elementwise::kAdd:
        return [=] { at::add(x, y); };
      case Elementwise::kCopy:
        return [x = tensor({1, width, rows}, of.dtype, device).transpose(1, 2)] { at::clone(x); };
      case Elementwise::kHeadNorm:
        break;
    }
    return [=, norm = at::full({kHeadDim}, 1.0, at::TensorOptions().device(device))] {
      ops::prepare_heads(x, {.weight = norm, .epsilon = 1e-6});
    };
  };
  return {fmt::format("{} {} x {}", kNames[static_cast<size_t>(what)], rows, width), WorkKind::kVector,
          of.dtype, prepare};
}

// Products of few rows do little more than read their weights, so layers on conditions (2 rows) count too.
// The shapes are those of PixArt and STDiT (1152 and 4 x 1152), of U-Nets (320 to 1280, with 8 times as many
// columns before a GEGLU), and of T5.
std::deque<Probe> gemm_probes(const Common& of) {
  std::deque<Probe> probes = {gemm_probe(of, 512, 1152, 1152)};
  constexpr std::array<std::array<int64_t, 2>, 12> kLayers = {{{1152, 1152},
                                                               {1152, 3456},
                                                               {1152, 4608},
                                                               {4608, 1152},
                                                               {320, 320},
                                                               {320, 2560},
                                                               {1280, 320},
                                                               {640, 640},
                                                               {640, 5120},
                                                               {1280, 1280},
                                                               {1280, 10240},
                                                               {5120, 1280}}};
  for (const auto& [inner, columns] : kLayers) {
    for (const int64_t rows : {2, 32, 128, 512, 2048, 8192}) {
      if (2.0 * static_cast<double>(rows * inner * columns) <= kMostFlops)
        probes.push_back(gemm_probe(of, rows, inner, columns));
    }
  }
  return probes;
}

std::deque<Probe> convolution_probes(const Common& of) {
  std::deque<Probe> probes = {conv_probe(of, 256, {128, 128, 3, 1})};
  const auto add = [&](const Window& window, std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes) {
      const double taps = static_cast<double>(window.kernel * window.kernel);
      if (2 * taps * static_cast<double>(size * size * window.in * window.out) <= kMostConvolutionFlops)
        probes.push_back(conv_probe(of, size, window));
    }
  };
  constexpr std::array<std::array<int64_t, 2>, 10> kLayers = {{{128, 128},
                                                               {256, 256},
                                                               {320, 320},
                                                               {512, 512},
                                                               {960, 320},
                                                               {640, 640},
                                                               {1280, 640},
                                                               {1920, 640},
                                                               {1280, 1280},
                                                               {2560, 1280}}};
  for (const auto& [in, out] : kLayers) add({in, out, 3, 1}, {8, 16, 32, 64, 128, 256});
  add({4, 320, 3, 1}, {32, 64});
  // In addition to the windows of a residual block whose number of channels changes.
  for (const auto& [in, out] :
       {std::array<int64_t, 2>{320, 640}, {960, 320}, {640, 1280}, {1920, 640}, {2560, 1280}})
    add({in, out, 1, 1}, {8, 16, 32, 64});
  for (const int64_t channels : {128, 320, 640, 1280}) {
    add({channels, channels, 3, 2}, {16, 32});
    for (const int64_t size : {16, 32, 64}) {
      if (4 * channels * size * size <= kMostUpsampled)
        probes.push_back(upsample_probe(of, 2 * size, channels));
    }
  }
  return probes;
}

std::deque<Probe> attention_probes(const Common& of) {
  std::deque<Probe> probes = {attention_probe(of, {1, 16, 256, 256, 72})};
  const auto add = [&](int64_t batch, int64_t queries, int64_t keys, int64_t head_dim) {
    const double flops = 4.0 * static_cast<double>(queries * keys * head_dim);
    const int64_t heads = 16 * flops <= kMostFlops ? 16 : 4;
    probes.push_back(attention_probe(of, {batch, heads, queries, keys, head_dim}));
  };
  for (const int64_t head_dim : {40, 64, 72, 160}) {
    for (const int64_t tokens : {64, 256, 1024, 4096}) {
      add(1, tokens, tokens, head_dim);
      for (const int64_t keys : {4, 20, 77, 300}) add(1, tokens, keys, head_dim);
    }
    // For patches and the ranks of a ring: fewer queries than keys, or vice versa.
    add(1, 256, 1024, head_dim);
    add(1, 1024, 4096, head_dim);
    // Along the frames of a video there are many sequences of few tokens.
    for (const int64_t frames : {2, 5, 16}) {
      for (const int64_t batch : {4, 32}) add(batch, frames, frames, head_dim);
    }
  }
  return probes;
}

std::deque<Probe> vector_probes(const Common& of) {
  using enum Elementwise;
  std::deque<Probe> probes = {vector_probe(of, kModulatedNorm, 512, 1024)};
  for (int64_t elements = 1 << 15; elements <= 1 << 25; elements *= 4) {
    for (const Elementwise what :
         {kModulatedNorm, kGatedAdd, kAdd, kGroupNorm, kGatedGelu, kCopy, kHeadNorm}) {
      // The tensors that it reads and writes.
      const int64_t tensors = what == kGatedAdd || what == kAdd || what == kGatedGelu ? 3 : 2;
      probes.push_back(vector_probe(of, what, elements / tensors / kVectorWidth, kVectorWidth));
    }
  }
  return probes;
}

}  // namespace

std::vector<Probe> make_probes(at::ScalarType dtype, int64_t cache_bytes) {
  const Common of{dtype, cache_bytes};
  std::array lists = {gemm_probes(of), convolution_probes(of), attention_probes(of), vector_probes(of)};
  std::vector<Probe> probes;
  while (true) {
    const size_t before = probes.size();
    for (std::deque<Probe>& list : lists) {
      if (list.empty()) continue;
      probes.push_back(std::move(list.front()));
      list.pop_front();
    }
    if (probes.size() == before) return probes;
  }
}

LoadingProbe loading_probe(at::ScalarType dtype) {
  constexpr int64_t kInner = 4096, kColumns = 10240;  // of T5-XXL
  auto source = std::make_shared<StoredSource>(tensor({kColumns, kInner}, at::kBFloat16, at::kCPU));
  return {[source, dtype] {
            const weights::Scope scope(*source, {.dtype = dtype, .device = at::kCPU, .groups = {}});
            ops::Linear(scope, kInner, kColumns, {.bias = false, .packing = ops::Packing::kAsStored});
          },
          kInner * kColumns * static_cast<int64_t>(c10::elementSize(dtype))};
}

Work work_of(const Probe& probe) {
  const c10::InferenceMode inference_mode;
  const MetaStandsFor device(at::kCPU);
  const auto run = probe.prepare(at::kMeta);
  comm::World world;
  RankTrace trace;
  {
    Recorder recorder(world, trace);
    run();
  }
  std::vector<Work> works;
  for (const Event& event : trace.events) {
    const auto* const operation = std::get_if<OperationEvent>(&event.what);
    if (operation == nullptr) continue;
    for (const Work& work : works_of(*operation, static_cast<int64_t>(c10::elementSize(probe.dtype))))
      works.push_back(work);
  }
  TESSERA_CHECK(works.size() == 1 && work_kind(works.front()) == probe.kind, "{} has {} operators",
                probe.name, works.size());
  return works.front();
}

}  // namespace tessera::plan
