// Measures the memory of decoding on several ranks, at the real decoder's widths.
#include <gtest/gtest.h>

#include <numeric>

#include "comm/collectives.h"
#include "core/host.h"
#include "models/autoencoder_kl.h"
#include "tests/support/peak_memory.h"
#include "tests/support/rank_threads.h"

namespace tessera::models {
namespace {

// Provides random weights of any requested shape.
class RandomWeights final : public weights::Source {
 public:
  bool has(const std::string& /*key*/) const override { return false; }
  at::Tensor load(const std::string& /*key*/, at::IntArrayRef shape, at::ScalarType dtype,
                  at::ArrayRef<weights::Slice> /*slices*/, at::Device /*device*/) override {
    return at::randn(shape, dtype) /
           std::sqrt(static_cast<double>(c10::multiply_integers(shape.slice(1)) + 1));
  }
  at::Tensor stored(const std::string& /*key*/, at::IntArrayRef shape) override { return at::randn(shape); }
};

AutoencoderKLDecoder decoder_of_sdxl(at::ScalarType dtype) {
  const Json json = {{"block_out_channels", {128, 256, 512, 512}},
                     {"layers_per_block", 2},
                     {"latent_channels", 4},
                     {"down_block_types", std::vector<std::string>(4, "DownEncoderBlock2D")},
                     {"up_block_types", std::vector<std::string>(4, "UpDecoderBlock2D")},
                     {"sample_size", 1024}};
  RandomWeights weights;
  return {weights::Scope(weights, {dtype, at::kCPU, {}}),
          AutoencoderKLConfig(JsonConfig(json, "config.json"))};
}

struct Peaks {
  int64_t alone = 0;
  std::vector<int64_t> of_ranks;
  int64_t largest() const { return *std::max_element(of_ranks.begin(), of_ranks.end()); }
};

// Returns the bytes of tensors while latents [1, 4, side, side] are decoded.
Peaks peaks(const AutoencoderKLDecoder& decoder, int64_t side, int64_t ranks, const ops::ConvBlocks& blocks) {
  const at::Tensor z = at::randn({1, 4, side, side});
  const parallel::Grid grid{.rows = side, .columns = side};
  Peaks peaks;
  peaks.of_ranks.resize(static_cast<size_t>(ranks));
  if (ranks > 1)
    comm::run_ranks_as_threads(
        ranks,
        [&](comm::World world) {
          std::vector<int64_t> all(static_cast<size_t>(ranks));
          std::iota(all.begin(), all.end(), 0);
          const comm::Group group = world.group(all, "vae");
          comm::connect(group, at::kCPU);
          nn::Tokens tokens(parallel::Cut(grid, parallel::GridAxis::kRows, 1, ranks),
                            {.ring = group, .all = group});
          tokens.limit_convolutions(blocks);
          const Range rows = tokens.cut().part(0, group.rank);
          peaks.of_ranks[static_cast<size_t>(group.rank)] =
              peak_bytes([&] { decoder.decode(z.narrow(2, rows.begin, rows.length), tokens); });
        },
        comm::Wire::kShared, std::chrono::minutes(5));
  comm::run_ranks_as_threads(1, [&](const comm::World& /*world*/) {
    nn::Tokens tokens(grid);
    tokens.limit_convolutions(blocks);
    peaks.alone = peak_bytes([&] { decoder.decode(z, tokens); });
  });
  return peaks;
}

// Processors without products in bf16 copy whole tensors to fp32 within oneDNN's convolutions, which no split
// or block of ours bounds: there the figures are those of fp32.
std::vector<at::ScalarType> dtypes() {
  return cpu_has_bf16() ? std::vector{at::kFloat, at::kBFloat16} : std::vector{at::kFloat};
}

void expect_shares(int64_t side) {
  for (const at::ScalarType dtype : dtypes()) {
    const AutoencoderKLDecoder decoder = decoder_of_sdxl(dtype);
    for (const auto& [ranks, share] : {std::pair(2, 0.55), std::pair(4, 0.30)}) {
      const Peaks found = peaks(decoder, side, ranks, {});
      const double ratio = static_cast<double>(found.largest()) / static_cast<double>(found.alone);
      EXPECT_LE(ratio, share) << ranks << " ranks, " << c10::toString(dtype);
      EXPECT_NEAR(static_cast<double>(decoder.bytes_per_pixel() * side * side * 64),
                  static_cast<double>(found.alone), 0.1 * static_cast<double>(found.alone));
      fmt::print("{} px, {}: one rank {} MiB, the largest of {} {:.3f} of it\n", side * 8,
                 c10::toString(dtype), found.alone >> 20, ranks, ratio);
    }
  }
}

TEST(DecoderMemory, IsSharedByRanks) {
  expect_shares(/*side=*/32);
}

// Three of the four largest activations remain, because the shortcut's output replaces its input. (For small
// pictures, blocks of 4 MiB would outweigh that.)
TEST(DecoderMemory, IsLessInBlocks) {
  const AutoencoderKLDecoder decoder = decoder_of_sdxl(dtypes().back());
  const int64_t side = dtypes().back() == at::kFloat ? 36 : 48;  // activations of about as many bytes
  const double whole = static_cast<double>(peaks(decoder, side, 1, {}).alone);
  EXPECT_LE(static_cast<double>(peaks(decoder, side, 1, {.rows = 16}).alone), 0.8 * whole);
}

// This test takes minutes; --gtest_also_run_disabled_tests runs it.
TEST(DecoderMemory, DISABLED_IsSharedByRanksAt1024Pixels) {
  expect_shares(/*side=*/128);
}

}  // namespace
}  // namespace tessera::models
