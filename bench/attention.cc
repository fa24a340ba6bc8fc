// Self-attention of PixArt-XL (16 heads of 72), with queries, keys and values as parts of one product: the
// project's kernel and ATen's.
#include <ATen/Functions.h>
#include <benchmark/benchmark.h>

#include "ops/attention.h"

namespace tessera {
namespace {

constexpr int64_t kHeads = 16, kDepth = 72;

void own_attention(benchmark::State& state, at::ScalarType dtype) {
  const auto parts = at::randn({2, state.range(0), 3 * kHeads * kDepth}, dtype).chunk(3, 2);
  const at::Tensor out = at::empty(parts[0].sizes(), dtype);
  while (state.KeepRunning()) ops::attention_into(out, parts[0], parts[1], parts[2], kHeads);
}

void aten_attention(benchmark::State& state, at::ScalarType dtype) {
  const auto parts = at::randn({2, state.range(0), 3 * kHeads * kDepth}, dtype).chunk(3, 2);
  const auto heads = [](const at::Tensor& x) { return x.unflatten(2, {kHeads, kDepth}).transpose(1, 2); };
  while (state.KeepRunning()) {
    benchmark::DoNotOptimize(
        at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2])));
  }
}

BENCHMARK_CAPTURE(own_attention, bf16, at::kBFloat16)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(aten_attention, bf16, at::kBFloat16)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(own_attention, fp32, at::kFloat)->Arg(1024)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(aten_attention, fp32, at::kFloat)->Arg(1024)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera
