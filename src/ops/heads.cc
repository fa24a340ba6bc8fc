#include "ops/heads.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "core/device.h"
#include "core/error.h"
#include "ops/kernel.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

constexpr int64_t kMaxDepth = 512;  // of heads that the kernel takes

// The angles of a token, or null; the other members as in HeadPreparation.
struct Rotation {
  const float* angles;  // the cosine and the sine of each pair
  bool comes_first;
  RotaryPairs pairs;
};

TESSERA_INLINE void turn(float* head, const Rotation& rotation, int64_t depth) {
  const float* const angles = rotation.angles;
  if (rotation.pairs == RotaryPairs::kHalves) {
    float* const other = head + depth / 2;
    TESSERA_INDEPENDENT
    for (int64_t i = 0; i < depth / 2; ++i) {
      const float first = head[i], second = other[i];
      head[i] = first * angles[2 * i] - second * angles[2 * i + 1];
      other[i] = first * angles[2 * i + 1] + second * angles[2 * i];
    }
    return;
  }
  TESSERA_INDEPENDENT
  for (int64_t i = 0; i < depth; i += 2) {
    const float even = head[i], odd = head[i + 1];
    head[i] = even * angles[i] - odd * angles[i + 1];
    head[i + 1] = even * angles[i + 1] + odd * angles[i];
  }
}

TESSERA_INLINE void norm(float* head, const float* weight, float epsilon, int64_t depth) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < depth; ++i) squares += head[i] * head[i];
  const float factor = 1.0F / std::sqrt(squares / static_cast<float>(depth) + epsilon);
  for (int64_t i = 0; i < depth; ++i) head[i] = head[i] * factor * weight[i];
}

// One token. `weight` may be null.
template <typename T>
TESSERA_INLINE void prepare_token(const T* from, T* to, const float* weight, const Rotation& rotation,
                                  int64_t heads, int64_t depth, float epsilon) {
  const bool rotates = rotation.angles != nullptr;
  float head[kMaxDepth];
  for (int64_t h = 0; h < heads; ++h, from += depth, to += depth) {
    widen(from, head, depth);
    if (rotates && rotation.comes_first) turn(head, rotation, depth);
    if (weight != nullptr) norm(head, weight, epsilon, depth);
    if (rotates && !rotation.comes_first) turn(head, rotation, depth);
    for (int64_t i = 0; i < depth; ++i) store(to + i, head[i]);
  }
}

struct Tokens {
  int64_t stride_of_sample, stride_of_token, per_sample;
};

// Tokens [begin, end) of all samples.
template <typename T>
TESSERA_INLINE void prepare_tokens(const T* x, T* out, const Tokens& tokens, const float* weight,
                                   Rotation rotation, int64_t begin, int64_t end, int64_t heads,
                                   int64_t depth, float epsilon) {
  const float* const angles = rotation.angles;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t sample = i / tokens.per_sample, token = i % tokens.per_sample;
    rotation.angles = angles == nullptr ? nullptr : angles + token * depth;
    prepare_token(x + sample * tokens.stride_of_sample + token * tokens.stride_of_token,
                  out + i * heads * depth, weight, rotation, heads, depth, epsilon);
  }
}

at::Tensor rotated(const at::Tensor& x, const HeadPreparation& how) {  // x [B, n, H, D]
  const int64_t member = how.pairs == RotaryPairs::kHalves ? 3 : 4;    // the dimension of a pair's two
  const at::Tensor pairs = member == 3 ? x.unflatten(3, {2, -1}) : x.unflatten(3, {-1, 2});
  const at::Tensor cos = how.angles.select(2, 0).unsqueeze(1), sin = how.angles.select(2, 1).unsqueeze(1);
  const at::Tensor first = pairs.select(member, 0), second = pairs.select(member, 1);
  return at::stack({first * cos - second * sin, first * sin + second * cos}, member).flatten(3);
}

at::Tensor prepared_by_aten(const at::Tensor& x, const HeadPreparation& how, int64_t depth) {
  at::Tensor y = x.to(at::kFloat).unflatten(2, {-1, depth});
  if (how.rotates_first && how.angles.defined()) y = rotated(y, how);
  if (how.weight.defined())
    y = y * at::rsqrt(y.square().mean(-1, /*keepdim=*/true) + how.epsilon) * how.weight;
  if (!how.rotates_first && how.angles.defined()) y = rotated(y, how);
  return y.flatten(2).to(x.scalar_type());
}

template <typename T>
void prepare(const at::Tensor& x, const at::Tensor& out, const HeadPreparation& how, int64_t depth) {
  const at::Tensor weight = how.weight.defined() ? how.weight.contiguous() : how.weight;
  const at::Tensor angles = how.angles.defined() ? how.angles.contiguous() : how.angles;
  const auto floats = [](const at::Tensor& y) {
    return y.defined() ? y.const_data_ptr<float>() : static_cast<const float*>(nullptr);
  };
  const Tokens tokens{x.stride(0), x.stride(1), x.size(1)};
  constexpr int64_t kGrain = 16;  // minimum number of tokens per task
  at::parallel_for(0, x.size(0) * x.size(1), kGrain, [&](int64_t begin, int64_t end) {
    run_kernel<prepare_tokens<T>>(static_cast<const T*>(x.const_data_ptr()),
                                  static_cast<T*>(out.mutable_data_ptr()), tokens, floats(weight),
                                  Rotation{floats(angles), how.rotates_first, how.pairs}, begin, end,
                                  x.size(2) / depth, depth, static_cast<float>(how.epsilon));
  });
}

}  // namespace

at::Tensor prepare_heads(const at::Tensor& x, const HeadPreparation& how, std::string_view role) {
  const OperationScope scope;
  TESSERA_CHECK(how.weight.defined() || how.angles.defined(), "neither a norm nor angles");
  const int64_t depth = how.weight.defined() ? how.weight.size(0) : 2 * how.angles.size(1);
  TESSERA_CHECK(
      x.dim() == 3 && x.size(2) % depth == 0 &&
          (!how.angles.defined() || (how.angles.size(0) == x.size(1) && 2 * how.angles.size(1) == depth)),
      "{} features of {} tokens do not fit heads of {}", x.size(-1), x.size(1), depth);
  if (how.weight.defined()) record("rms_norm", role, x, 4 * x.numel(), {x, how.weight});
  if (how.angles.defined()) record("rotary", "", x, 3 * x.numel(), {x, how.angles});
  const bool has_kernel =
      is_for_cpu(x.device()) && depth <= kMaxDepth &&
      (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
  if (!has_kernel) return prepared_by_aten(x, how, depth);
  const at::Tensor rows = x.stride(2) == 1 ? x : x.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  if (x.is_meta()) return out;
  if (x.scalar_type() == at::kFloat) {
    prepare<float>(rows, out, how, depth);
  } else if (x.scalar_type() == at::kBFloat16) {
    prepare<Bf16>(rows, out, how, depth);
  } else {
    prepare<Fp16>(rows, out, how, depth);
  }
  return out;
}

}  // namespace tessera::ops
