#include "kernels/heads.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "kernels/kernel.h"

namespace tessera::kernels {
namespace {

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
  float head[kMaxHeadDepth];
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

void prepare_heads_into(const at::Tensor& out, const at::Tensor& x, const HeadPreparation& how,
                        int64_t depth) {
  if (x.scalar_type() == at::kFloat) {
    prepare<float>(x, out, how, depth);
  } else if (x.scalar_type() == at::kBFloat16) {
    prepare<Bf16>(x, out, how, depth);
  } else {
    prepare<Fp16>(x, out, how, depth);
  }
}

}  // namespace tessera::kernels
