#include "ops/linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/device.h"
#include "core/error.h"
#include "core/host.h"
#include "kernels/choices.h"
#include "kernels/gemm.h"
#include "kernels/tile_gemm.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using PackSignature = at::Tensor(const at::Tensor&, std::optional<c10::SymInt>);
using LinearSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                   c10::string_view, Scalars, std::optional<c10::string_view>);

LinearKernel kernel_for(at::ScalarType dtype, at::Device device, int64_t numbers) {
  const bool known = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  if (device.is_meta() && is_for_cpu(device) && known) return LinearKernel::kNone;
  if (!device.is_cpu() || numbers == 0 || !known) return LinearKernel::kAten;
  const LinearKernel kernel = !kernels::is_multiplied(dtype) ? kernels::choices().narrow_linear
                              : dtype == at::kFloat          ? kernels::choices().linear
                                                             : kernels::choices().bf16_linear;
  if (kernel == LinearKernel::kTiles && !kernels::tile_gemm_runs()) return LinearKernel::kOneDnn;
  return kernel == LinearKernel::kOneDnn && !at::hasMKLDNN() ? LinearKernel::kAten : kernel;
}

at::Tensor pack(const at::Tensor& weight) {
  static const auto reorder = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                                  .typed<PackSignature>();
  return reorder.call(weight, std::nullopt);
}

struct PointwiseName {
  const char* attribute;
  std::optional<c10::string_view> algorithm;
};

PointwiseName pointwise_name(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return {"none", std::nullopt};
    case Activation::kGelu:
      return {"gelu", "none"};
    case Activation::kGeluTanh:
      return {"gelu", "tanh"};
    case Activation::kRelu:
      return {"relu", std::nullopt};
    case Activation::kSilu:
      return {"swish", std::nullopt};
  }
  TESSERA_CHECK(false, "activation {}", static_cast<int>(activation));
}

at::Tensor activated(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::clamp_min(x, 0);  // meta tensors lack at::relu()
    case Activation::kSilu:
      return at::silu(x);
  }
  TESSERA_CHECK(false, "activation {}", static_cast<int>(activation));
}

// The name of an operation in a record.
const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kRelu:
      return "relu";
    case Activation::kSilu:
      return "silu";
    case Activation::kNone:
      break;
  }
  TESSERA_CHECK(false, "activation {}", static_cast<int>(activation));
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// Whether this project's kernels multiply by a weight as stored: they do for 16 bits on processors with AVX2
// only, where ATen reaches 8 to 9 GFLOP/s. They take 0.16 to 0.19 of its time, and 1.04 to 1.3 times as long
// as with packed weights; weights widened for at::linear take 0.17 to 0.27 (Zen 3, bf16, [512, 2560] -> 4096
// and back). From AVX-512 on, ATen uses oneDNN, which has not been compared yet.
bool is_own_as_stored(const at::Tensor& weight) {
  const at::ScalarType dtype = weight.scalar_type();
  return is_for_cpu(weight.device()) && weight.numel() > 0 && cpu_isa() == Isa::kAvx2 &&
         (dtype == at::kBFloat16 || dtype == at::kHalf);
}

}  // namespace

at::Tensor activate(const at::Tensor& x, Activation activation) {
  const OperationScope scope;
  at::Tensor out = activated(x, activation);
  if (activation == Activation::kNone) return out;
  record(name_of(activation), "", out, out.numel(), {x});
  record_dataflow([&] { return Dataflow{name_of(activation), "", {x}, {out}}; });
  return out;
}

Linear::Linear(const weights::Scope& scope, int64_t in, int64_t out, LinearOptions options)
    : Linear(read_linear({{scope, out, {0, out}}}, in, {{0, in}}, options)) {}

Linear::Linear(at::Tensor weight_matrix, at::Tensor bias_vector, Packing packing, std::string place)
    : in_features(weight_matrix.size(1)),
      out_features(weight_matrix.size(0)),
      bias(std::move(bias_vector)),
      kernel(packing == Packing::kForSpeed
                 ? kernel_for(weight_matrix.scalar_type(), weight_matrix.device(), weight_matrix.numel())
                 : LinearKernel::kAten),
      role(std::move(place)) {
  weight = kernel == LinearKernel::kOneDnn  ? pack(weight_matrix)
           : kernel == LinearKernel::kOwn   ? kernels::gemm_pack(weight_matrix)
           : kernel == LinearKernel::kTiles ? kernels::tile_gemm_pack(weight_matrix)
                                            : std::move(weight_matrix);
}

at::Tensor Linear::multiply(const at::Tensor& x, Activation activation) const {
  if (x.numel() == 0) {  // a short sequence may leave a rank without tokens
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = out_features;
    return at::empty(shape, x.options().dtype(weight.scalar_type()));
  }
  if (kernel == LinearKernel::kOwn) return kernels::gemm_linear(x, weight, bias, activation);
  if (kernel == LinearKernel::kTiles) return kernels::tile_gemm_linear(x, weight, bias, activation);
  if (kernel == LinearKernel::kNone) return at::linear(x, weight, optional(bias));
  if (kernel == LinearKernel::kAten) {
    if (!is_own_as_stored(weight)) return activated(at::linear(x, weight, optional(bias)), activation);
    return weight.is_meta() ? at::linear(x, weight, optional(bias))
                            : kernels::gemm_linear_as_stored(x, weight, bias, activation);
  }
  static const auto product = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                  .typed<LinearSignature>();
  const PointwiseName name = pointwise_name(activation);
  return product.call(x, weight, optional(bias), name.attribute, Scalars(), name.algorithm);
}

at::Tensor Linear::operator()(const at::Tensor& x, Activation activation) const {
  const OperationScope scope;
  TESSERA_CHECK(x.size(-1) == in_features, "linear of {} inputs got {}", in_features, x.size(-1));
  at::Tensor out = multiply(x, activation);
  const int64_t rows = x.numel() / in_features;
  const std::array<int64_t, 2> sizes = {out_features, in_features};
  record("linear", role, out, 2 * rows * in_features * out_features,
         {x, Operand(sizes, weight.scalar_type()), bias});
  record_dataflow([&] { return Dataflow{"linear", role, {x, weight, bias}, {out}}; });
  if (activation == Activation::kNone) return out;
  record_fused(name_of(activation), role, out, out.numel());
  record_dataflow([&] { return Dataflow{name_of(activation), role, {out}, {out}}; });
  return out;
}

namespace {

// The common name of layers that form one product: "to_qkv" for "to_q", "to_k" and "to_v".
std::string joint_name(const std::vector<LayerPart>& layers) {
  std::vector<std::string> names;
  for (const LayerPart& layer : layers) {
    if (std::find(names.begin(), names.end(), layer.scope.name()) == names.end())
      names.push_back(layer.scope.name());
  }
  if (names.size() == 1) return names.front();
  const std::string& first = names.front();
  size_t before = first.size(), after = first.size();
  for (const std::string& name : names)
    before = std::min<size_t>(
        before, std::mismatch(first.begin(), first.end(), name.begin(), name.end()).first - first.begin());
  for (const std::string& name : names) {
    const size_t alike =
        std::mismatch(first.rbegin(), first.rend(), name.rbegin(), name.rend()).first - first.rbegin();
    after = std::min({after, alike, name.size() - before});
  }
  std::vector<std::string> parts;
  parts.reserve(names.size());
  for (const std::string& name : names) parts.push_back(name.substr(before, name.size() - before - after));
  const bool are_letters =
      std::all_of(parts.begin(), parts.end(), [](const std::string& part) { return part.size() == 1; });
  return fmt::format("{}{}{}", first.substr(0, before), fmt::join(parts, are_letters ? "" : "_"),
                     first.substr(first.size() - after));
}

// Adjacent parts are read at once.
std::vector<Range> joined(const std::vector<Range>& ranges) {
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (!result.empty() && result.back().end() == range.begin) {
      result.back().length += range.length;
    } else {
      result.push_back(range);
    }
  }
  return result;
}

// Memory for packed weights, which is kept while what they are made of is read. This then lies above it and
// leaves no gap when it is freed: blocks of PixArt-Sigma-XL in bf16, of 42.5 MB, otherwise leave 5.3 MB.
at::Tensor place_for_packed(const weights::Scope& scope, int64_t out, int64_t in, Packing packing) {
  constexpr int64_t kUnit = 64;  // to which packed weights are padded at most
  if (packing != Packing::kForSpeed) return {};
  const LinearKernel kernel = kernel_for(scope.dtype(), scope.device(), out * in);
  if (kernel == LinearKernel::kAten || kernel == LinearKernel::kNone) return {};
  const auto padded = [](int64_t size) { return (size + kUnit - 1) / kUnit * kUnit; };
  return at::empty({padded(out), padded(in)}, at::dtype(scope.dtype()));
}

std::vector<LayerPart> joined(const std::vector<LayerPart>& layers) {
  std::vector<LayerPart> result;
  for (const LayerPart& layer : layers) {
    if (!result.empty() && result.back().scope.name() == layer.scope.name() &&
        result.back().outputs.end() == layer.outputs.begin) {
      result.back().outputs.length += layer.outputs.length;
    } else {
      result.push_back(layer);
    }
  }
  return result;
}

}  // namespace

Linear read_linear(const std::vector<LayerPart>& all_layers, int64_t in, const std::vector<Range>& all_inputs,
                   LinearOptions options, bool with_bias) {
  const std::vector<LayerPart> layers = joined(all_layers);
  const std::vector<Range> inputs = joined(all_inputs);
  const auto join = [](const std::vector<at::Tensor>& parts, int64_t dim) {
    return parts.empty() ? at::Tensor() : parts.size() == 1 ? parts[0] : at::concat(parts, dim);
  };
  int64_t outputs = 0, columns = 0;
  for (const LayerPart& layer : layers) outputs += layer.outputs.length;
  for (const Range& range : inputs) columns += range.length;
  at::Tensor place = place_for_packed(layers.front().scope, outputs, columns, options.packing);
  std::vector<at::Tensor> weights, biases;
  for (const LayerPart& layer : layers) {
    const weights::Slice rows{0, layer.outputs.begin, layer.outputs.length};
    std::vector<at::Tensor> blocks;
    for (const Range& range : inputs)
      blocks.push_back(layer.scope.tensor("weight", {layer.out, in}, {rows, {1, range.begin, range.length}}));
    weights.push_back(join(blocks, 1));
    if (options.bias) biases.push_back(layer.scope.tensor("bias", {layer.out}, rows));
  }
  if (!with_bias) biases.clear();
  at::Tensor matrix = join(weights, 0).contiguous();
  weights.clear();
  place.reset();
  return {std::move(matrix), join(biases, 0), options.packing, joint_name(layers)};
}

}  // namespace tessera::ops
