// Linear layers [rows, in] -> out, computed by each backend: of PixArt-XL and SDXL at 512 pixels, and of the
// text encoder of FLUX.2 klein with its 512 tokens. FLOP/s count two operations per multiply-add.
#include <ATen/Functions.h>
#include <benchmark/benchmark.h>

#include "kernels/gemm.h"
#include "kernels/tile_gemm.h"
#include "ops/linear.h"

namespace tessera {
namespace {

template <typename Multiply>
void measure(benchmark::State& state, at::ScalarType dtype, const Multiply& multiply) {
  const int64_t in = state.range(0), out = state.range(1), rows = state.range(2);
  const at::Tensor x = at::randn({rows, in}, dtype), weight = at::randn({out, in}, dtype),
                   bias = at::randn({out}, dtype);
  const auto product = multiply(weight, bias);
  while (state.KeepRunning()) benchmark::DoNotOptimize(product(x));
  state.counters["FLOP/s"] = benchmark::Counter(2.0 * static_cast<double>(rows * in * out),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

void own_product(benchmark::State& state, at::ScalarType dtype, kernels::Activation activation) {
  measure(state, dtype, [&](const at::Tensor& weight, const at::Tensor& bias) {
    return [packed = kernels::gemm_pack(weight), bias, activation](const at::Tensor& x) {
      return kernels::gemm_linear(x, packed, bias, activation);
    };
  });
}

void stored_product(benchmark::State& state, at::ScalarType dtype) {
  measure(state, dtype, [](const at::Tensor& weight, const at::Tensor& bias) {
    return [weight, bias](const at::Tensor& x) {
      return kernels::gemm_linear_as_stored(x, weight, bias, kernels::Activation::kNone);
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
  benchmark->Args({1152, 1152, 2048})
      ->Args({1152, 4608, 2048})
      ->Args({4608, 1152, 2048})
      ->Args({1280, 10240, 2048})
      ->Args({5120, 1280, 2048})
      ->Unit(benchmark::kMillisecond);
}

void encoder_shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({2560, 4096, 512})
      ->Args({4096, 2560, 512})
      ->Args({2560, 9728, 512})
      ->Args({9728, 2560, 512})
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(own_product, fp32, at::kFloat, kernels::Activation::kNone)->Apply(shapes);
BENCHMARK_CAPTURE(own_product, fp32_gelu, at::kFloat, kernels::Activation::kGeluTanh)->Apply(shapes);
BENCHMARK_CAPTURE(own_product, bf16, at::kBFloat16, kernels::Activation::kNone)->Apply(shapes);
BENCHMARK_CAPTURE(own_product, fp16, at::kHalf, kernels::Activation::kNone)->Apply(shapes);
BENCHMARK_CAPTURE(aten_product, fp32, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(aten_product, bf16, at::kBFloat16)->Apply(encoder_shapes);
BENCHMARK_CAPTURE(stored_product, bf16, at::kBFloat16)->Apply(encoder_shapes);
BENCHMARK_CAPTURE(stored_product, fp16, at::kHalf)->Apply(encoder_shapes);
BENCHMARK_CAPTURE(tile_product, bf16, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(layer_product, bf16, at::kBFloat16)->Apply(shapes);

}  // namespace
}  // namespace tessera
