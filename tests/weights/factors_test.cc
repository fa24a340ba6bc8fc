// Weights of eight bits with factors beside them, in the forms in which files have them.
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/json.h"
#include "tests/support/temporary_folder.h"
#include "weights/checkpoint.h"
#include "weights/loading_hook.h"
#include "weights/memory_counter.h"
#include "weights/safetensors.h"
#include "weights/scope.h"

namespace tessera::weights {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

class FactorsTest : public ::testing::Test {
 protected:
  Checkpoint open(const Tensors& tensors, const std::map<std::string, std::string>& metadata = {}) {
    write_safetensors(temporary_.path() / "model.safetensors", tensors, metadata);
    return {temporary_.path(), Library::kTransformers};
  }

  // Shards, the last with `metadata`, and their index.
  void write_shards(const std::map<std::string, Tensors>& shards,
                    const std::map<std::string, std::string>& metadata = {}) {
    Json file_of = Json::object();
    for (const auto& [name, tensors] : shards) {
      const bool is_last = name == shards.rbegin()->first;
      write_safetensors(temporary_.path() / name, tensors,
                        is_last ? metadata : std::map<std::string, std::string>());
      for (const auto& [key, tensor] : tensors) file_of[key] = name;
    }
    std::ofstream(temporary_.path() / "model.safetensors.index.json") << Json{{"weight_map", file_of}};
  }

  std::string refusal(const Tensors& tensors, const std::map<std::string, std::string>& metadata = {}) {
    write_safetensors(temporary_.path() / "model.safetensors", tensors, metadata);
    return refusal_of_folder();
  }

  std::string refusal_of_folder() {
    try {
      Checkpoint(temporary_.path(), Library::kTransformers);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3);
      return error.what();
    }
    return "accepted";
  }

  TemporaryFolder temporary_;
};

at::Tensor eight_bits(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat8_e4m3fn) {
  return at::randn(shape).to(dtype);
}

at::Tensor text_as_bytes(const std::string& text) {
  return at::tensor(std::vector<int64_t>(text.begin(), text.end())).to(at::kByte);
}

// The product in fp32, rounded once.
at::Tensor product(const at::Tensor& weight, const at::Tensor& factor, at::ScalarType dtype) {
  return (weight.to(at::kFloat) * factor.to(at::kFloat)).to(dtype);
}

TEST_F(FactorsTest, OfAWeightOrOfEachRow) {
  const at::Tensor one = at::tensor(0.37F), rows = at::rand({6}) + 0.5;
  const std::vector<std::pair<at::Tensor, at::Tensor>> forms = {
      {one, one},
      {one.view({1}), one},
      {one.to(at::kBFloat16), one.to(at::kBFloat16)},
      {rows, rows.view({6, 1})},
      {rows.view({6, 1}), rows.view({6, 1})},
      {rows.to(at::kHalf), rows.to(at::kHalf).view({6, 1})}};
  for (const at::ScalarType stored : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const at::Tensor weight = eight_bits({6, 4}, stored);
    for (const char* name : {"a.scale_weight", "a.weight_scale"}) {
      for (const auto& [factor, expected] : forms) {
        Checkpoint checkpoint = open({{"a.weight", weight}, {name, factor}, {"a.bias", at::ones({6})}});
        EXPECT_EQ(checkpoint.keys(), (std::vector<std::string>{"a.bias", "a.weight"}));
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
          const at::Tensor whole = product(weight, expected, dtype);
          const auto load = [&](at::ArrayRef<Slice> slices) {
            return checkpoint.load("a.weight", {6, 4}, dtype, slices);
          };
          EXPECT_TRUE(at::equal(load({}), whole));
          EXPECT_TRUE(at::equal(load(Slice{0, 2, 3}), whole.narrow(0, 2, 3)));
          EXPECT_TRUE(
              at::equal(load({Slice{1, 1, 2}, Slice{0, 4, 2}}), whole.narrow(0, 4, 2).narrow(1, 1, 2)));
        }
        EXPECT_TRUE(at::equal(checkpoint.stored("a.weight", {6, 4}), product(weight, expected, at::kFloat)));
      }
    }
  }
}

// More rows than are decoded at once, of which the last are fewer; and a vector.
TEST_F(FactorsTest, OfLargeWeightsAndOfVectors) {
  const at::Tensor large = eight_bits({1500, 1100}), rows = at::rand({1500, 1}) + 0.5;
  const at::Tensor vector = eight_bits({5}), of_vector = at::rand({5}) + 0.5;
  Checkpoint checkpoint = open(
      {{"a.weight", large}, {"a.weight_scale", rows}, {"b.weight", vector}, {"b.weight_scale", of_vector}});
  const at::Tensor whole = product(large, rows, at::kBFloat16);
  EXPECT_TRUE(at::equal(checkpoint.load("a.weight", {1500, 1100}, at::kBFloat16), whole));
  EXPECT_TRUE(at::equal(checkpoint.load("a.weight", {1500, 1100}, at::kBFloat16, Slice{0, 7, 1400}),
                        whole.narrow(0, 7, 1400)));
  EXPECT_TRUE(at::equal(checkpoint.load("b.weight", {5}, at::kFloat, Slice{0, 1, 3}),
                        product(vector, of_vector, at::kFloat).narrow(0, 1, 3)));
}

TEST_F(FactorsTest, RowsTakeTheirOwnFactors) {
  const at::Tensor weight = eight_bits({6, 4}), rows = at::rand({6}) + 0.5, half = at::tensor(0.5F);
  write_safetensors(
      temporary_.path() / "file.safetensors",
      {{"a.weight", weight}, {"a.weight_scale", rows}, {"b.weight", weight}, {"b.weight_scale", half}});
  const auto file = std::make_shared<SafetensorsFile>(temporary_.path() / "file.safetensors");
  for (const auto& [name, factor] : {std::pair("a.weight", rows.view({6, 1})), {"b.weight", half}}) {
    const at::Tensor whole = product(weight, factor, at::kFloat);
    NamedTensor part = named_tensors({file}).at(name), swapped = part, turned = part;
    take_rows(part, 1, 3);
    swapped.has_halves_swapped = turned.is_transposed = true;
    std::swap(turned.entry.shape[0], turned.entry.shape[1]);
    Checkpoint checkpoint(file, {{"part", part}, {"swapped", swapped}, {"turned", turned}});
    EXPECT_TRUE(at::equal(checkpoint.load("part", {2, 4}, at::kFloat), whole.narrow(0, 2, 2)));
    EXPECT_TRUE(at::equal(checkpoint.load("swapped", {6, 4}, at::kFloat, Slice{0, 1, 3}),
                          at::concat({whole.narrow(0, 4, 2), whole.narrow(0, 0, 1)})));
    EXPECT_TRUE(
        at::equal(checkpoint.load("turned", {4, 6}, at::kFloat, Slice{0, 1, 2}), whole.t().narrow(0, 1, 2)));
  }
}

// On the meta device a weight takes what it takes elsewhere, and a program does not convert it.
TEST_F(FactorsTest, AreCountedAsTheyLie) {
  Checkpoint checkpoint = open({{"a.weight", eight_bits({8, 4})}, {"a.weight_scale", at::tensor(2.0F)}});
  at::ScalarType recorded = at::kLong;
  const ObserveLoading observe([&](const LoadedWeight& weight) { recorded = weight.stored_dtype; });
  const MemoryCounter memory;
  const at::Tensor part = checkpoint.load("a.weight", {8, 4}, at::kBFloat16, Slice{0, 0, 2}, at::kMeta);
  EXPECT_EQ(recorded, at::kBFloat16);
  EXPECT_EQ(checkpoint.bytes_used(), 2U * 4);
  EXPECT_EQ(checkpoint.bytes_held(), 2U * 4 * 2);
  EXPECT_EQ(memory.bytes(), 2U * 4 * 2);
}

TEST_F(FactorsTest, ThoseOfInputsAndMarkersAreLeftOut) {
  const at::Tensor weight = eight_bits({2, 2}), one = at::ones({1});
  const std::string formats =
      R"({"format_version": "1.0", "layers": {"a": {"format": "float8_e4m3fn"}, "gone": {"format": "nvfp4"}}})";
  Checkpoint checkpoint = open({{"a.weight", weight},
                                {"a.weight_scale", one * 3},
                                {"a.input_scale", one},
                                {"a.comfy_quant", text_as_bytes(R"({"format": "float8_e4m3fn",
                                                                    "full_precision_matrix_mult": true})")},
                                {"b.weight", weight},
                                {"b.scale_weight", one},
                                {"b.scale_input", one},
                                {"model.diffusion_model.scaled_fp8", eight_bits({2})},
                                {"scaled_fp8", eight_bits({0})},
                                {"c.input_scale", one},
                                {"d.norm.scale", one}},
                               {{"_quantization_metadata", formats}});
  // A tensor of such a name that belongs to no weight of eight bits is one like any other.
  EXPECT_EQ(checkpoint.keys(),
            (std::vector<std::string>{"a.weight", "b.weight", "c.input_scale", "d.norm.scale"}));
  EXPECT_TRUE(at::equal(checkpoint.load("a.weight", {2, 2}, at::kFloat), weight.to(at::kFloat) * 3));
}

TEST_F(FactorsTest, OtherFormsAreRefusedByName) {
  const at::Tensor weight = eight_bits({4, 32}), one = at::ones({1});
  const std::string form = "quantised in a form that cannot be read";
  for (const auto& [tensors, part] : std::vector<std::pair<Tensors, std::string>>{
           {{{"a.weight_scale", one}}, "'a.weight_scale' is a factor of 'a.weight', which is missing"},
           {{{"a.weight", weight}, {"a.weight_scale", at::ones({4, 2})}},
            "'a.weight_scale', Float of shape [4, 2]"},
           {{{"a.weight", weight}, {"a.weight_scale", at::ones({32})}}, form},
           {{{"a.weight", weight}, {"a.weight_scale", at::ones({1, 4})}}, form},
           {{{"a.weight", weight}, {"a.weight_scale", at::ones({4, 1}).to(at::kByte)}}, form},
           {{{"a.weight", weight}, {"a.weight_scale", eight_bits({4})}}, form},
           {{{"a.weight", at::ones({4, 4}, at::kByte)}, {"a.weight_scale", one}},
            "'a.weight', Byte, is " + form},
           {{{"a.weight", at::ones({4, 4}, at::kChar)}, {"a.weight_scale", one}}, form},
           {{{"a.weight", at::ones({4, 4})}, {"a.scale_weight", one}}, form},
           {{{"a.weight", weight}, {"a.weight_scale", one}, {"a.scale_weight", one}},
            "'a.weight' has two factors"},
           {{{"a.weight", weight}, {"a.weight_scale_2", one}},
            "'a.weight_scale_2' says that 'a.weight' is " + form},
           {{{"a.weight", weight}, {"a.weight_scale_inv", one}}, form},
           {{{"a.weight", weight}, {"a.weight.absmax", one}}, "'a.weight.absmax' says"},
           {{{"a.weight", weight},
             {"a.weight_scale", one},
             {"a.comfy_quant", text_as_bytes(R"({"format": "nvfp4"})")}},
            "'a.comfy_quant' says that 'a' is " + form + " ({\"format\":\"nvfp4\"}); take a file of bf16"},
           {{{"a.weight", weight},
             {"a.weight_scale", one},
             {"a.comfy_quant", text_as_bytes(R"({"format": "float8_e5m2", "convrot": true})")}},
            form + " (convrot)"},
           {{{"a.weight", weight}, {"a.comfy_quant", text_as_bytes(R"({"format": "float8_e5m2"})")}},
            "'a.weight_scale' is missing"},
           {{{"a.weight", weight}, {"a.weight_scale", one}, {"a.comfy_quant", text_as_bytes("[]")}}, form},
           {{{"a.weight", weight}, {"a.weight_scale", one}, {"a.comfy_quant", text_as_bytes("{")}},
            "a.comfy_quant]"}})
    EXPECT_NE(refusal(tensors).find(part), std::string::npos) << refusal(tensors);
  const Tensors scaled = {{"a.weight", weight}, {"a.weight_scale", one}};
  for (const auto& [formats, part] :
       {std::pair(R"({"layers": {"a": {"format": "mxfp8"}}})", "'_quantization_metadata' says that 'a' is"),
        {R"({"layers": []})", "'_quantization_metadata' must be an object with layers"},
        {"[1]", "must be an object with layers"},
        {"{", "_quantization_metadata]"}}) {
    const std::string message = refusal(scaled, {{"_quantization_metadata", formats}});
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

// A factor and a format count wherever the index of shards has them, before or behind the weight.
TEST_F(FactorsTest, OneThatIsLostIsMissed) {
  const Tensors whole = {{"a.weight", eight_bits({4, 6})},
                         {"a.scale_weight", at::tensor(0.5F)},
                         {"b.weight", eight_bits({4, 6})},
                         {"b.scale_weight", at::tensor(0.5F)},
                         {"norm.weight", eight_bits({6})}};
  EXPECT_EQ(refusal(whole), "accepted");
  Tensors lacks = whole;
  lacks.erase("b.scale_weight");
  EXPECT_NE(refusal(lacks).find("'b.weight' has eight bits and no factor, though other weights have one"),
            std::string::npos)
      << refusal(lacks);
  lacks.erase("a.scale_weight");
  EXPECT_EQ(refusal(lacks), "accepted");  // plain ones
}

TEST_F(FactorsTest, OfOtherShards) {
  const at::Tensor weight = eight_bits({4, 2}), first = at::rand({4, 1}) + 0.5, last = at::rand({1}) + 0.5;
  const std::string formats = R"({"layers": {"b": {"format": "float8_e4m3fn"}}})";
  write_shards(
      {{"1.safetensors", {{"a.weight_scale", first}, {"b.weight", weight}, {"scaled_fp8", eight_bits({0})}}},
       {"2.safetensors",
        {{"a.weight", weight},
         {"a.bias", at::ones({4})},
         {"b.input_scale", last},
         {"scaled_fp8", eight_bits({0})}}},
       {"3.safetensors",
        {{"b.weight_scale", last}, {"b.comfy_quant", text_as_bytes(R"({"format": "float8_e4m3fn"})")}}}},
      {{"_quantization_metadata", formats}});
  Checkpoint checkpoint(temporary_.path(), Library::kTransformers);
  EXPECT_EQ(checkpoint.num_files(), 3U);
  EXPECT_EQ(checkpoint.keys(), (std::vector<std::string>{"a.bias", "a.weight", "b.weight"}));
  const at::Tensor whole = product(weight, first, at::kFloat);
  EXPECT_TRUE(at::equal(checkpoint.load("a.weight", {4, 2}, at::kFloat), whole));
  EXPECT_TRUE(
      at::equal(checkpoint.load("a.weight", {4, 2}, at::kFloat, Slice{0, 1, 2}), whole.narrow(0, 1, 2)));
  EXPECT_TRUE(at::equal(checkpoint.load("b.weight", {4, 2}, at::kFloat), product(weight, last, at::kFloat)));
}

// What is wrong is said of the shard that says it.
TEST_F(FactorsTest, OfOtherShardsAreRefusedThere) {
  const at::Tensor weight = eight_bits({4, 32}), one = at::ones({1});
  const Tensors in_first = {{"a.weight", weight}, {"a.bias", one}};
  for (const auto& [in_second, part] : std::vector<std::pair<Tensors, std::string>>{
           {{{"b.weight_scale", one}}, "'b.weight_scale' is a factor of 'b.weight', which is missing"},
           {{{"a.weight_scale", at::ones({4, 2})}}, "'a.weight_scale', Float of shape [4, 2]"},
           {{{"a.weight_scale", one}, {"a.scale_weight", one}}, "'a.weight' has two factors"},
           {{{"a.weight.absmax", one}}, "'a.weight.absmax' says that 'a.weight' is"},
           {{{"a.comfy_quant", text_as_bytes(R"({"format": "float8_e5m2"})")}}, "is missing"},
           {{{"a.comfy_quant", text_as_bytes("{")}}, "a.comfy_quant]"},
           {{{"a.weight", weight}}, "'a.weight' is also in 1.safetensors"}}) {
    write_shards({{"1.safetensors", in_first}, {"2.safetensors", in_second}});
    const std::string message = refusal_of_folder();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find((temporary_.path() / "2.safetensors").string()), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace tessera::weights
