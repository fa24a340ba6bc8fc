#include "plan/memory_need.h"

#include <gtest/gtest.h>

#include "tests/support/generate.h"
#include "tests/support/peak_memory.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::plan {
namespace {

using engine::tiny;

engine::Settings settings_of(int64_t side, at::ScalarType dtype, engine::OutputType output,
                             int64_t pictures = 1) {
  engine::Request request = engine::tiny_request(side, side, 3);
  request.num_inference_steps = 2;
  request.dtype = dtype;
  request.output_type = output;
  request.num_images_per_prompt = pictures;
  return engine::resolve(request, tiny());
}

MemoryNeed need_of(const engine::Settings& settings, const parallel::ParallelOptions& options = {}) {
  return memory_need(settings, tiny(),
                     parallel::resolve_layout(options, engine::workload(settings, tiny()), std::nullopt));
}

// What kernels need beside the tensors is in no trace: a sixth of the denoiser's here, next to nothing of the
// decoder's. Weights of this model are small, and those that are read from the file without a copy are no
// allocation.
TEST(MemoryNeed, IsWhatARunTakes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const engine::OutputType output : {engine::OutputType::kImage, engine::OutputType::kLatent}) {
      const engine::Settings settings = settings_of(1024, dtype, output);
      const auto need = static_cast<double>(need_of(settings).most());
      const auto taken = static_cast<double>(peak_bytes([&] { engine::generate(settings, tiny()); }));
      EXPECT_GT(need, 0.8 * taken) << dtype << ", latents: " << (output == engine::OutputType::kLatent);
      EXPECT_LT(need, 1.25 * taken) << dtype << ", latents: " << (output == engine::OutputType::kLatent);
    }
  }
}

// Pictures of later groups need nothing more, but denoiser and decoder stay together for them.
TEST(MemoryNeed, IsThatOfAGroup) {
  const auto of = [](int64_t pictures) {
    return need_of(settings_of(512, at::kFloat, engine::OutputType::kImage, pictures));
  };
  EXPECT_GT(of(2).denoise, of(1).denoise);
  EXPECT_EQ(of(9).denoise, of(2).denoise);
  EXPECT_GT(of(9).decode, of(2).decode);
  EXPECT_LT(of(9).decode, of(2).decode + of(2).decode / 8);
}

// Each rank has other parts, of which the first is not the largest.
TEST(MemoryNeed, OfUnequalRanksIsTheirSum) {
  const engine::Settings settings = settings_of(512, at::kFloat, engine::OutputType::kImage);
  const auto of = [&](std::vector<double> shares) {
    parallel::ParallelOptions options = parallel::degrees(1, false, 1, 2, 1, 1);
    options.rank_shares = std::move(shares);
    return need_of(settings, options);
  };
  for (const std::vector<double>& shares : {std::vector<double>{1, 3}, {3, 1}}) {
    EXPECT_NEAR(static_cast<double>(of(shares).denoise) / static_cast<double>(of({}).denoise), 1, 0.1);
    EXPECT_NEAR(static_cast<double>(of(shares).decode) / static_cast<double>(of({}).decode), 1, 0.1);
  }
}

TEST(MemoryNeed, OfRanksIsTheirSum) {
  const engine::Settings settings = settings_of(512, at::kFloat, engine::OutputType::kImage, 2);
  const MemoryNeed one = need_of(settings);
  const MemoryNeed replicas = need_of(settings, parallel::degrees(2, false, 1, 1, 1, 1));
  EXPECT_GT(replicas.decode, one.decode * 19 / 10) << "each decodes a whole picture";
  const MemoryNeed ranks = need_of(settings, parallel::degrees(1, false, 1, 1, 2, 1));
  EXPECT_GT(ranks.denoise, one.denoise * 9 / 10) << "each has all weights, and half of the tokens";
  EXPECT_GT(ranks.decode, one.decode * 9 / 10);
  EXPECT_LT(ranks.decode, one.decode * 13 / 10) << "each decodes half of the rows";
  EXPECT_GT(need_of(settings, parallel::degrees(1, false, 2, 1, 1, 1)).denoise, one.denoise * 9 / 10);
}

}  // namespace
}  // namespace tessera::plan
