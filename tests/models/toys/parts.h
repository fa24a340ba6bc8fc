// Text encoders and a decoder for whole families of toys. Nothing of them is read from files.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <functional>

#include "tests/models/toys/toy.h"

namespace tessera::models::toys {

// Random numbers of a text, in the dtype and on the device of the model.
inline at::Tensor numbers_of(const std::string& text, at::IntArrayRef shape, const weights::Placement& of) {
  auto generator = at::detail::createCPUGenerator(std::hash<std::string>()(text));
  return at::randn(shape, generator).to(of.device, of.dtype);
}

// One vector for each text.
class PooledOfText final : public TextEncoder {
 public:
  explicit PooledOfText(const LoadOptions& options) : placement_(options.placement) {}
  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t /*max_length*/) override {
    std::vector<Conditioning> all;
    for (const Prompt& prompt : prompts)
      all.push_back({{kPooled, numbers_of(prompt.text, {kPrompt}, placement_)}});
    return all;
  }

 private:
  weights::Placement placement_;
};

// A token for each byte of a text, and one for its end.
class TokensOfText final : public TextEncoder {
 public:
  explicit TokensOfText(const LoadOptions& options) : placement_(options.placement) {}
  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t max_length) override {
    std::vector<Conditioning> all;
    for (const Prompt& prompt : prompts) {
      const int64_t length = std::min<int64_t>(std::ssize(prompt.text) + 1, max_length);
      all.push_back({{kTokens, numbers_of(prompt.text, {length, kPrompt}, placement_)}});
    }
    return all;
  }

 private:
  weights::Placement placement_;
};

// Shows the first three channels of the latents, each as a square of pixels.
class Repeater final : public Decoder {
 public:
  static constexpr int64_t kScale = 2;

  explicit Repeater(const LoadOptions& /*options*/) {}
  at::Tensor decode_clip(const at::Tensor& z, int64_t /*frames*/, nn::Tokens& /*tokens*/,
                         ClipMemory* /*memory*/) const override {
    return at::tanh(z.narrow(1, 0, 3)).repeat_interleave(kScale, 2).repeat_interleave(kScale, 3);
  }
  int64_t scale_factor() const override { return kScale; }
  int64_t clip_bytes(int64_t height, int64_t width) const override {
    return 3 * height * width * kScale * kScale * static_cast<int64_t>(sizeof(float));
  }
};

template <typename Part, typename Base = TextEncoder>
std::unique_ptr<Base> load_toy_part(const std::filesystem::path& /*model*/, const LoadOptions& options,
                                    LoadStatistics& /*statistics*/) {
  return std::make_unique<Part>(options);
}

inline std::optional<std::pair<int64_t, int64_t>> no_binning(int64_t /*height*/, int64_t /*width*/,
                                                             int64_t /*sample_size*/) {
  return std::nullopt;
}

}  // namespace tessera::models::toys
