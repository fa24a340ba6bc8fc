#include "pipelines/noise.h"

#include <gtest/gtest.h>

#include "weights/safetensors.h"

namespace tessera::pipelines {
namespace {

at::Tensor golden(const weights::SafetensorsFile& file, const std::string& name) {
  const weights::TensorEntry& entry = file.header().tensors.at(name);
  const auto bytes = file.bytes(entry);
  return at::from_blob(const_cast<std::byte*>(bytes.data()), entry.shape, at::kFloat);
}

// The bits of torch.randn with a seeded torch.Generator, drawn twice in a row.
TEST(Noise, EqualsTorchBitForBit) {
  const weights::SafetensorsFile file(TESSERA_GOLDEN_DIR "/noise/noise.safetensors");
  for (const uint64_t seed : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 40}) {
    Noise noise(seed);
    for (const char* draw : {"first", "second"}) {
      const at::Tensor expected = golden(file, fmt::format("{}.{}", seed, draw));
      EXPECT_TRUE(noise.draw(expected.sizes()).equal(expected)) << seed << ' ' << draw;
    }
  }
}

}  // namespace
}  // namespace tessera::pipelines
