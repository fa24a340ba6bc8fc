// Linear layers [2048, in] -> out of PixArt-XL at 512 pixels, computed by each backend. FLOP/s count two
// operations per multiply-add.
#include <ATen/Functions.h>
#include <benchmark/benchmark.h>

#include "kernels/gemm.h"
#include "kernels/tile_gemm.h"
#include "ops/linear.h"

namespace tessera {
namespace {

constexpr int64_t kTokens = 2048;

template <typename Multiply>
void measure(benchmark::State& state, at::ScalarType dtype, const Multiply& multiply) {
  const int64_t in = state.range(0), out = state.range(1);
  const at::Tensor x = at::randn({kTokens, in}, dtype), weight = at::randn({out, in}, dtype),
                   bias = at::randn({out}, dtype);
  const auto product = multiply(weight, bias);
  while (state.KeepRunning()) benchmark::DoNotOptimize(product(x));
  state.counters["FLOP/s"] = benchmark::Counter(2.0 * static_cast<double>(kTokens * in * out),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

void own_product(benchmark::State& state, at::ScalarType dtype, kernels::Activation activation) {
  measure(state, dtype, [&](const at::Tensor& weight, const at::Tensor& bias) {
    return [packed = kernels::gemm_pack(weight), bias, activation](const at::Tensor& x) {
      return kernels::gemm_linear(x, packed, bias, activation);
    };
  });
}

void tile_product(benchmark::State& state, at::ScalarType dtype) {
  if (!kernels::tile_gemm_runs()) return state.SkipWithError("this machine has no tiles");
  measure(state, dtype, [](const at::Tensor& weight, const at::Tensor& bias) {
    return [packed = kernels::tile_gemm_pack(weight), bias](const at::Tensor& x) {
      return kernels::tile_gemm_linear(x, packed, bias, kernels::Activation::kNone);
    };
  });
}

// The layers' choice: oneDNN, or tiles for bf16 if there are any.
void layer_product(benchmark::State& state, at::ScalarType dtype) {
  measure(state, dtype, [](const at::Tensor& weight, const at::Tensor& bias) {
    ops::Linear linear(weight, bias);
    return [linear](const at::Tensor& x) { return linear(x); };
  });
}

void aten_product(benchmark::State& state, at::ScalarType dtype) {
  measure(state, dtype, [](const at::Tensor& weight, const at::Tensor& bias) {
    return [=](const at::Tensor& x) { return at::linear(x, weight, bias); };
  });
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({1152, 1152})
      ->Args({1152, 4608})
      ->Args({4608, 1152})
      ->Args({1280, 10240})
      ->Args({5120, 1280})
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(own_product, fp32, at::kFloat, kernels::Activation::kNone)->Apply(shapes);
BENCHMARK_CAPTURE(own_product, fp32_gelu, at::kFloat, kernels::Activation::kGeluTanh)->Apply(shapes);
BENCHMARK_CAPTURE(own_product, bf16, at::kBFloat16, kernels::Activation::kNone)->Apply(shapes);
BENCHMARK_CAPTURE(own_product, fp16, at::kHalf, kernels::Activation::kNone)->Apply(shapes);
BENCHMARK_CAPTURE(aten_product, fp32, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(tile_product, bf16, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(layer_product, bf16, at::kBFloat16)->Apply(shapes);

}  // namespace
}  // namespace tessera
