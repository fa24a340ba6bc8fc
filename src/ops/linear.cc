#include "ops/linear.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "core/cpu.h"
#include "core/error.h"

namespace tessera::ops {
namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using PackSignature = at::Tensor(const at::Tensor&, std::optional<c10::SymInt>);
using LinearSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                   c10::string_view, Scalars, std::optional<c10::string_view>);

// oneDNN with weights in its own layout. Measured on [2048, 1152] x [1152, 1152..4608], one thread, Zen 4,
// against at::linear: 1.05 of its speed in bf16 and 1.02-1.12 in fp32, and GELU costs nothing on top.
bool can_pack(const at::Tensor& weight) {
  if (!weight.is_cpu() || !at::hasMKLDNN() || weight.numel() == 0) return false;
  return weight.scalar_type() == at::kFloat || (weight.scalar_type() == at::kBFloat16 && cpu_has_bf16());
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

at::Tensor read_bias(const weights::Scope& scope, int64_t out, at::ArrayRef<weights::Slice> slices = {}) {
  return scope.has("bias") ? scope.tensor("bias", {out}, slices) : at::Tensor();
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSilu:
      return at::silu(x);
  }
  TESSERA_CHECK(false, "activation {}", static_cast<int>(activation));
}

Linear::Linear(const weights::Scope& scope, int64_t in, int64_t out)
    : Linear(scope.tensor("weight", {out, in}), read_bias(scope, out)) {}

Linear::Linear(at::Tensor weight_matrix, at::Tensor bias_vector)
    : in_features(weight_matrix.size(1)),
      out_features(weight_matrix.size(0)),
      bias(std::move(bias_vector)),
      packed(can_pack(weight_matrix)) {
  weight = packed ? pack(weight_matrix) : std::move(weight_matrix);
}

at::Tensor Linear::operator()(const at::Tensor& x, Activation activation) const {
  TESSERA_CHECK(x.size(-1) == in_features, "linear of {} inputs got {}", in_features, x.size(-1));
  if (!packed) return activate(at::linear(x, weight, optional(bias)), activation);
  static const auto linear = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                 .typed<LinearSignature>();
  const PointwiseName name = pointwise_name(activation);
  return linear.call(x, weight, optional(bias), name.attribute, Scalars(), name.algorithm);
}

Linear read_linear(const std::vector<weights::Scope>& scopes, int64_t in, int64_t out, const Range& outputs,
                   const Range& inputs, bool with_bias) {
  const weights::Slice rows{0, outputs.begin, outputs.length}, columns{1, inputs.begin, inputs.length};
  std::vector<at::Tensor> weights, biases;
  for (const weights::Scope& scope : scopes) {
    weights.push_back(scope.tensor("weight", {out, in}, {rows, columns}));
    if (scope.has("bias")) biases.push_back(read_bias(scope, out, rows));
  }
  TESSERA_CHECK(biases.empty() || biases.size() == scopes.size(), "some of the joined layers have no bias");
  const auto join = [](const std::vector<at::Tensor>& parts) {
    return parts.empty() ? at::Tensor() : parts.size() == 1 ? parts[0] : at::cat(parts);
  };
  if (!with_bias) biases.clear();
  return {join(weights).contiguous(), join(biases)};
}

}  // namespace tessera::ops
