#include "nn/cross_attention.h"

#include "ops/attention.h"

namespace tessera::nn {

CrossAttention::CrossAttention(const weights::Scope& scope, int64_t width, int64_t context_width,
                               int64_t heads, int64_t depth, ops::LinearOptions options)
    : to_q_(scope / "to_q", width, {heads, depth}, options),
      to_kv_({{scope / "to_k", {heads, depth}}, {scope / "to_v", {heads, depth}}}, context_width, options),
      to_out_(scope / "to_out" / 0, {heads, depth}, width),
      depth_(depth) {}

at::Tensor CrossAttention::operator()(const at::Tensor& x, const std::vector<at::Tensor>& prompts,
                                      at::ArrayRef<int64_t> prompt_of) const {
  const at::Tensor q = to_q_(x);  // [B, n, local heads * D]
  const at::Tensor attended = at::empty_like(q);
  // Adjacent samples with the same prompt are treated as one sample with more queries.
  for (int64_t first = 0, count = 0; first < q.size(0); first += count) {
    const int64_t prompt = prompt_of[static_cast<size_t>(first)];
    for (count = 1; first + count < q.size(0) && prompt_of[static_cast<size_t>(first + count)] == prompt;)
      ++count;
    const std::vector<at::Tensor> both = to_kv_.split(prompts[static_cast<size_t>(prompt)]);
    const auto as_one = [&](const at::Tensor& y) {
      return y.narrow(0, first, count).flatten(0, 1).unsqueeze(0);
    };
    ops::attention_into(as_one(attended), as_one(q), both[0], both[1], q.size(2) / depth_);
  }
  return to_out_(attended);
}

}  // namespace tessera::nn
