#include "weights/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include "core/error.h"
#include "tests/support/temporary_folder.h"
#include "weights/safetensors.h"
#include "weights/scope.h"

namespace tessera::weights {
namespace {

using enum Library;

class CheckpointTest : public ::testing::Test {
 protected:
  void write_text(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  std::string refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3);
      return error.what();
    }
    return "accepted";
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

// Returns the kilobytes of mapped files under the folder that are resident in this process's memory.
int64_t resident_kilobytes(const std::filesystem::path& folder) {
  std::ifstream maps("/proc/self/smaps");
  int64_t sum = 0;
  bool is_ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(':')) is_ours = line.find(folder.string()) != std::string::npos;
    int64_t kilobytes = 0;
    if (is_ours && std::sscanf(line.c_str(), "Rss: %ld kB", &kilobytes) == 1) sum += kilobytes;
  }
  return sum;
}

// A converted weight takes memory only once, because the file's pages are released.
TEST_F(CheckpointTest, PagesOfWhatWasConvertedLeaveMemory) {
  write_safetensors(folder_ / "model.safetensors", {{"weight", at::ones({1024, 1024})}});
  Checkpoint checkpoint(folder_, kTransformers);
  const Scope scope(checkpoint, {});
  {
    const at::Tensor view = scope.tensor("weight", {1024, 1024});
    EXPECT_EQ(view.sum().item<double>(), 1024 * 1024);
    EXPECT_GE(resident_kilobytes(folder_), 4000);
  }
  EXPECT_LE(resident_kilobytes(folder_), 100);
  const at::Tensor converted = scope.with_dtype(at::kBFloat16).tensor("weight", {1024, 1024});
  EXPECT_LE(resident_kilobytes(folder_), 100);
}

// While nothing of it has been read.
TEST_F(CheckpointTest, SaysWhatAFileIsThatLacksAWeight) {
  const auto said = [&](const char* key, bool is_in_use) {
    write_safetensors(folder_ / "model.safetensors", {{key, at::ones({2})}});
    Checkpoint checkpoint(folder_, kTransformers);
    const Scope scope(checkpoint, {});
    if (is_in_use) scope.tensor(key, {2});
    return refusal([&] { scope.tensor("gone", {2}); });
  };
  EXPECT_TRUE(said("x_pad_token", false)
                  .ends_with("weight 'gone' is missing; by its names model.safetensors is of Z-Image"));
  EXPECT_TRUE(said("x_pad_token", true).ends_with("weight 'gone' is missing"));
  EXPECT_TRUE(said("some", false).ends_with("weight 'gone' is missing"));
  EXPECT_NE(said("attn.to_q.lora_A.weight", false).find("model.safetensors] is a LoRA"), std::string::npos);
  write_safetensors(folder_ / "model.safetensors", {});
  Checkpoint empty(folder_, kTransformers);
  EXPECT_TRUE(refusal([&] { empty.load("gone", {2}, at::kFloat); }).ends_with("weight 'gone' is missing"));
}

TEST_F(CheckpointTest, LoadsConvertsAndSlices) {
  const at::Tensor weight = at::randn({6, 4});
  write_safetensors(folder_ / "model.safetensors", {{"block.0.weight", weight}, {"other", at::ones({2})}});
  Checkpoint checkpoint(folder_, kTransformers);
  const Scope scope = Scope(checkpoint, {}) / "block" / 0;
  EXPECT_TRUE(at::equal(scope.tensor("weight", {6, 4}), weight));
  EXPECT_TRUE(at::equal(scope.tensor("weight", {6, 4}, Slice{0, 2, 3}), weight.narrow(0, 2, 3)));
  EXPECT_TRUE(at::equal(scope.tensor("weight", {6, 4}, Slice{1, 1, 2}), weight.narrow(1, 1, 2)));
  EXPECT_TRUE(at::equal(scope.tensor("weight", {6, 4}, {Slice{0, 2, 3}, Slice{1, 1, 2}}),
                        weight.narrow(0, 2, 3).narrow(1, 1, 2)));
  EXPECT_TRUE(at::equal(scope.with_dtype(at::kBFloat16).tensor("weight", {6, 4}), weight.to(at::kBFloat16)));
  EXPECT_EQ(checkpoint.unused(), std::vector<std::string>{"other"});
}

TEST_F(CheckpointTest, ASliceCountsOnlyItsOwnBytes) {
  write_safetensors(folder_ / "model.safetensors", {{"w", at::zeros({8, 4})}});
  Checkpoint checkpoint(folder_, kTransformers);
  checkpoint.load("w", {8, 4}, at::kFloat, Slice{0, 0, 2});
  EXPECT_EQ(checkpoint.bytes_used(), sizeof(float) * 2 * 4);
  checkpoint.load("w", {8, 4}, at::kBFloat16, {Slice{0, 4, 4}, Slice{1, 0, 1}});
  EXPECT_EQ(checkpoint.bytes_used(), (2U * 4 + 4) * sizeof(float));
  EXPECT_EQ(checkpoint.bytes_held(), sizeof(float) * 2 * 4 + 4 * sizeof(c10::BFloat16));
}

TEST_F(CheckpointTest, ATensorOutlivesItsCheckpoint) {
  const at::Tensor weight = at::randn({5});
  write_safetensors(folder_ / "model.safetensors", {{"w", weight}});
  at::Tensor loaded;
  {
    Checkpoint checkpoint(folder_, kTransformers);
    loaded = checkpoint.load("w", {5}, at::kFloat);
  }
  EXPECT_TRUE(at::equal(loaded, weight));
}

TEST_F(CheckpointTest, TheMetaDeviceChecksShapesOnly) {
  write_safetensors(folder_ / "model.safetensors", {{"w", at::zeros({8, 4})}});
  Checkpoint checkpoint(folder_, kTransformers);
  const at::Tensor slice = checkpoint.load("w", {8, 4}, at::kBFloat16, Slice{0, 0, 2}, at::kMeta);
  EXPECT_TRUE(slice.is_meta());
  EXPECT_EQ(slice.sizes(), (at::IntArrayRef{2, 4}));
  EXPECT_EQ(slice.scalar_type(), at::kBFloat16);
  EXPECT_EQ(checkpoint.bytes_used(), sizeof(float) * 2 * 4);  // the bytes that it would read
  EXPECT_EQ(checkpoint.bytes_held(), sizeof(c10::BFloat16) * 2 * 4);
  EXPECT_TRUE(checkpoint.unused().empty());
  EXPECT_NE(refusal([&] { checkpoint.load("w", {4, 8}, at::kFloat, {}, at::kMeta); }).find("expected [4, 8]"),
            std::string::npos);
}

// Each file holds a weight of its own name; an index points to a file that is not looked for by itself.
TEST_F(CheckpointTest, TakesTheFilesThatTheirLibraryTakes) {
  const auto file = [&](const std::string& name) {
    write_safetensors(folder_ / name, {{name, at::zeros({1})}});
  };
  const auto index = [&](const std::string& name) {
    const std::string shard = name + "-of-1.safetensors";
    write_safetensors(folder_ / shard, {{name, at::zeros({1})}});
    write_text(name, fmt::format(R"({{"weight_map":{{"{}":"{}"}}}})", name, shard));
  };
  const auto taken = [&](Library library, const std::string& variant = "") {
    return Checkpoint(folder_, library, variant).keys().at(0);
  };
  // What stands beside the weights comes before them in the alphabet, and in this list.
  for (const char* name : {"adapter_model", "diffusion_pytorch_model.ema", "diffusion_pytorch_model.fp8",
                           "flax_model", "diffusion_pytorch_model.bf16"})
    file(std::string(name) + ".safetensors");
  index("adapter.safetensors.index.json");

  const std::string unet = "diffusion_pytorch_model", text = "model";
  file(unet + ".fp16.safetensors");
  file(text + ".fp16.safetensors");
  EXPECT_EQ(taken(kDiffusers), unet + ".fp16.safetensors");
  EXPECT_EQ(taken(kTransformers), text + ".fp16.safetensors");
  index(unet + ".safetensors.fp16.index.json");
  EXPECT_EQ(taken(kDiffusers), unet + ".safetensors.fp16.index.json");
  index(unet + ".safetensors.index.fp16.json");
  index(text + ".safetensors.index.fp16.json");
  EXPECT_EQ(taken(kDiffusers), unet + ".safetensors.index.fp16.json");
  EXPECT_EQ(taken(kTransformers), text + ".fp16.safetensors");
  file(unet + ".safetensors");
  index(text + ".safetensors.index.json");
  EXPECT_EQ(taken(kDiffusers), unet + ".safetensors");
  EXPECT_EQ(taken(kTransformers), text + ".safetensors.index.json");
  index(unet + ".safetensors.index.json");
  file(text + ".safetensors");
  EXPECT_EQ(taken(kDiffusers), unet + ".safetensors.index.json");
  EXPECT_EQ(taken(kTransformers), text + ".safetensors");

  EXPECT_EQ(taken(kDiffusers, "ema"), unet + ".ema.safetensors");
  EXPECT_EQ(taken(kDiffusers, "fp16"), unet + ".safetensors.index.fp16.json");
  EXPECT_EQ(taken(kTransformers, "fp16"), text + ".fp16.safetensors");
  EXPECT_EQ(taken(kTransformers, "ema"), text + ".safetensors");  // a part without the variant
  EXPECT_TRUE(holds_variant(folder_, kDiffusers, "bf16"));
  EXPECT_FALSE(holds_variant(folder_, kTransformers, "bf16"));
}

TEST_F(CheckpointTest, ListsWhatIsThereUnderOtherNames) {
  for (const char* name : {"model.bf16.safetensors", "backup.safetensors", "m-00001-of-00002.safetensors"})
    write_safetensors(folder_ / name, {{"w", at::zeros({1})}});
  const std::string message = refusal([&] { Checkpoint checkpoint(folder_, kTransformers); });
  EXPECT_NE(message.find("holds no model.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find("but backup.safetensors, model.bf16.safetensors;"), std::string::npos) << message;
  EXPECT_TRUE(Checkpoint(folder_, kTransformers, "bf16").has("w"));
}

TEST_F(CheckpointTest, SaysThatAnIndexOfShardsIsMissing) {
  write_safetensors(folder_ / "model-00001-of-00002.safetensors", {{"w", at::zeros({1})}});
  const std::string message = refusal([&] { Checkpoint checkpoint(folder_, kTransformers); });
  EXPECT_NE(message.find("but no model.safetensors.index.json, which says what the parts hold"),
            std::string::npos)
      << message;
}

TEST_F(CheckpointTest, SaysThatAnotherFileIsALora) {
  for (const char* name : {"to_q.lora_A.weight", "to_q.lora_down.weight", "to_q.lokr_w1"}) {
    write_safetensors(folder_ / "pytorch_lora_weights.safetensors", {{name, at::zeros({1})}});
    const std::string message = refusal([&] { Checkpoint checkpoint(folder_, kTransformers); });
    EXPECT_NE(message.find("pytorch_lora_weights.safetensors] is a LoRA"), std::string::npos) << message;
  }
}

TEST_F(CheckpointTest, ReadsShards) {
  write_safetensors(folder_ / "m-00001-of-00002.safetensors", {{"a", at::zeros({1})}});
  write_safetensors(folder_ / "m-00002-of-00002.safetensors", {{"b", at::ones({1})}});
  const std::string map = R"({"a":"m-00001-of-00002.safetensors","b":"m-00002-of-00002.safetensors"})";
  write_text("model.safetensors.index.json", R"({"metadata":{"total_size":8},"weight_map":)" + map + "}");
  Checkpoint checkpoint(folder_, kTransformers);
  EXPECT_EQ(checkpoint.load("b", {1}, at::kFloat).item<float>(), 1.0F);

  std::filesystem::remove(folder_ / "m-00002-of-00002.safetensors");
  EXPECT_NE(refusal([&] { Checkpoint again(folder_, kTransformers); }).find("m-00002-of-00002.safetensors"),
            std::string::npos);
}

TEST_F(CheckpointTest, RefusesAnIndexThatLies) {
  write_safetensors(folder_ / "m-00001-of-00001.safetensors", {{"a", at::zeros({1})}});
  write_text("model.safetensors.index.json", R"({"weight_map":{"b":"m-00001-of-00001.safetensors"}})");
  EXPECT_NE(refusal([&] { Checkpoint checkpoint(folder_, kTransformers); }).find("'b' should be in"),
            std::string::npos);
  for (const char* name : {"../../etc/m.safetensors", "..", ".", "", "/etc/m.safetensors", "m\\u0000"}) {
    write_text("model.safetensors.index.json", fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name));
    EXPECT_NE(refusal([&] { Checkpoint checkpoint(folder_, kTransformers); }).find("same folder"),
              std::string::npos)
        << name;
  }
}

TEST_F(CheckpointTest, NamesWhatIsMissingOrMisshapen) {
  write_safetensors(folder_ / "model.safetensors",
                    {{"w", at::zeros({2, 3})}, {"i", at::zeros({2}, at::kLong)}});
  Checkpoint checkpoint(folder_, kTransformers);
  const Scope scope(checkpoint, {});
  EXPECT_NE(refusal([&] { scope.tensor("v", {1}); }).find("'v' is missing"), std::string::npos);
  EXPECT_NE(refusal([&] { scope.tensor("w", {3, 2}); }).find("shape [2, 3], expected [3, 2]"),
            std::string::npos);
  EXPECT_NE(refusal([&] { scope.tensor("i", {2}); }).find("floating-point"), std::string::npos);
}

TEST_F(CheckpointTest, SaysWhatItNeedsWhenOnlyPicklesAreThere) {
  EXPECT_NE(refusal([&] { Checkpoint checkpoint(folder_, kTransformers); }).find("no model.safetensors"),
            std::string::npos);
  write_text("pytorch_model.bin", "x");
  EXPECT_NE(refusal([&] { Checkpoint checkpoint(folder_, kTransformers); }).find("pickle"),
            std::string::npos);
  EXPECT_NE(refusal([&] { Checkpoint checkpoint(folder_ / "none", kTransformers); }).find("no such folder"),
            std::string::npos);
}

// Separate names stand for rows of a tensor, and for a transposed tensor.
TEST_F(CheckpointTest, NamesPartsOfAFile) {
  const at::Tensor all = at::arange(24, at::kFloat).view({6, 4});
  write_safetensors(folder_ / "model.safetensors", {{"all", all}, {"unnamed", at::ones({1})}});
  const auto file = std::make_shared<SafetensorsFile>(folder_ / "model.safetensors");
  const TensorEntry& whole = file->header().tensors.at("all");
  TensorEntry rows = whole, turned = whole;
  rows.shape = {2, 4};
  rows.begin += 8 * sizeof(float);
  rows.end = rows.begin + 8 * sizeof(float);
  turned.shape = {4, 6};
  Checkpoint checkpoint(file, {{"rows", {rows}}, {"turned", {turned, /*is_transposed=*/true}}});
  EXPECT_EQ(checkpoint.keys(), (std::vector<std::string>{"rows", "turned"}));
  EXPECT_FALSE(checkpoint.has("all"));
  EXPECT_TRUE(at::equal(checkpoint.load("rows", {2, 4}, at::kFloat), all.narrow(0, 2, 2)));
  const Slice half{0, 1, 2};
  EXPECT_TRUE(at::equal(checkpoint.load("turned", {4, 6}, at::kFloat, half), all.t().narrow(0, 1, 2)));
  EXPECT_TRUE(at::equal(checkpoint.stored("turned", {4, 6}), all.t()));
  EXPECT_EQ(checkpoint.bytes_used(), (8 + 12) * sizeof(float));
  EXPECT_NE(refusal([&] { checkpoint.load("turned", {6, 4}, at::kFloat); }).find("model.safetensors"),
            std::string::npos);
  EXPECT_NE(refusal([&] { checkpoint.load("all", {6, 4}, at::kFloat); }).find("'all' is missing"),
            std::string::npos);
}

// Returns the 256 numbers of a format as its definition (arXiv:2209.05433) gives them: a sign, an exponent
// and a mantissa. E5M2 has infinities, E4M3 has not.
at::Tensor widened_by_hand(at::ScalarType format) {
  const bool is_e5m2 = format == at::kFloat8_e5m2;
  const int mantissa_bits = is_e5m2 ? 2 : 3, bias = is_e5m2 ? 15 : 7, top = is_e5m2 ? 31 : 15;
  std::vector<float> numbers;
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = (bits & 127) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    const float fraction = std::ldexp(static_cast<float>(mantissa), -mantissa_bits);
    float number = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    if (is_e5m2 && exponent == top) number = mantissa == 0 ? INFINITY : NAN;
    if (!is_e5m2 && exponent == top && mantissa == 7) number = NAN;
    numbers.push_back(bits & 128 ? -number : number);
  }
  return at::tensor(numbers, at::kFloat);
}

class EightBitWeights : public CheckpointTest, public ::testing::WithParamInterface<at::ScalarType> {};

// Every number of eight bits, widened, is what bfloat16, which holds all of them, says.
TEST_P(EightBitWeights, AreWidenedAndNothingIsLost) {
  const at::Tensor bits = at::arange(256, at::kByte).view({16, 16});
  const at::Tensor numbers = bits.view(GetParam());
  write_safetensors(folder_ / "model.safetensors", {{"weight", numbers}});
  Checkpoint checkpoint(folder_, kTransformers);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor loaded = Scope(checkpoint, {}).with_dtype(dtype).tensor("weight", {16, 16});
    EXPECT_EQ(loaded.scalar_type(), dtype);
    EXPECT_TRUE(at::allclose(loaded.to(at::kFloat), widened_by_hand(GetParam()).view({16, 16}), 0, 0, true));
  }
  const std::vector<Slice> slices = {{0, 4, 8}, {1, 2, 3}};
  const at::Tensor part = Scope(checkpoint, {}).tensor("weight", {16, 16}, slices);
  EXPECT_TRUE(part.equal(widened_by_hand(GetParam()).view({16, 16}).narrow(0, 4, 8).narrow(1, 2, 3)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EightBitWeights, ::testing::Values(at::kFloat8_e4m3fn, at::kFloat8_e5m2));

}  // namespace
}  // namespace tessera::weights
