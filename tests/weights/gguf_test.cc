#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "tests/support/gguf_file.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"
#include "weights/block_format.h"
#include "weights/checkpoint.h"
#include "weights/memory_counter.h"

namespace tessera::weights {
namespace {

TensorFileHeader gguf_header(const std::string& file) {
  return parse_gguf(std::as_bytes(std::span(file)), file.size(), "test");
}

std::string gguf_refusal(const std::string& file) {
  try {
    gguf_header(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "accepted";
}

// The numbers of types in files.
const std::map<std::string, uint32_t> kTypeNumbers = {{"Q4_0", 2},  {"Q4_1", 3},  {"Q5_0", 6},  {"Q5_1", 7},
                                                      {"Q8_0", 8},  {"Q2_K", 10}, {"Q3_K", 11}, {"Q4_K", 12},
                                                      {"Q5_K", 13}, {"Q6_K", 14}};

std::string bytes_of_blocks(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

class GgufBlocks : public ::testing::TestWithParam<const char*> {
 protected:
  // Three rows of two blocks, and a row of its own.
  Checkpoint open() {
    const auto shape = std::vector<uint64_t>{3, static_cast<uint64_t>(numbers_.size(1))};
    const std::string path = temporary_.path() / "file.gguf";
    std::ofstream(path, std::ios::binary)
        << gguf_file({{"bias", {2}, 0, std::string(8, '\0')},
                      {"blocks", shape, kTypeNumbers.at(GetParam()), bytes_of_blocks(bytes_)},
                      {"row", {shape[1]}, kTypeNumbers.at(GetParam()), bytes_of_blocks(bytes_[0])}});
    auto file = open_tensor_file(path);
    NamedTensors tensors = named_tensors({file});
    NamedTensor rows = tensors.at("blocks"), swapped = rows;
    take_rows(rows, 1, 3);
    rows.has_halves_swapped = false;
    swapped.has_halves_swapped = true;
    take_rows(swapped, 0, 1);
    tensors.emplace("second", rows);
    tensors.emplace("swapped", swapped);
    return {file, std::move(tensors)};
  }

  const std::map<std::string, at::Tensor> golden_ = read_golden("blocks.safetensors");
  const at::Tensor bytes_ = golden_.at(std::string(GetParam()) + ".bytes");
  const at::Tensor numbers_ = golden_.at(std::string(GetParam()) + ".numbers");
  TemporaryFolder temporary_;
};

// Bit for bit what the formulas of diffusers and of the gguf package give in fp32, and that rounded once.
TEST_P(GgufBlocks, AreDecodedAsElsewhere) {
  Checkpoint checkpoint = open();
  const std::vector<int64_t> shape = numbers_.sizes().vec();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor expected = numbers_.to(dtype);
    EXPECT_TRUE(at::equal(checkpoint.load("blocks", shape, dtype), expected));
    EXPECT_TRUE(at::equal(checkpoint.load("blocks", shape, dtype, Slice{0, 1, 2}), expected.narrow(0, 1, 2)));
    EXPECT_TRUE(at::equal(checkpoint.load("blocks", shape, dtype, {Slice{1, 5, 40}, Slice{0, 1, 1}}),
                          expected.narrow(0, 1, 1).narrow(1, 5, 40)));
    EXPECT_TRUE(at::equal(checkpoint.load("second", {1, shape[1]}, dtype), expected.narrow(0, 1, 1)));
    EXPECT_TRUE(
        at::equal(checkpoint.load("row", {shape[1]}, dtype, Slice{0, 3, 50}), expected[0].narrow(0, 3, 50)));
  }
  EXPECT_TRUE(at::equal(checkpoint.stored("blocks", shape), numbers_));
  EXPECT_TRUE(
      at::equal(checkpoint.load("swapped", shape, at::kFloat, Slice{0, 0, 1}), numbers_.narrow(0, 2, 1)));
}

TEST_P(GgufBlocks, CountAsTheyLie) {
  Checkpoint checkpoint = open();
  const auto all = static_cast<uint64_t>(bytes_.numel());
  const MemoryCounter memory;
  const at::Tensor part =
      checkpoint.load("blocks", numbers_.sizes(), at::kBFloat16, Slice{0, 0, 1}, at::kMeta);
  EXPECT_EQ(checkpoint.bytes_used(), all / 3);
  EXPECT_EQ(checkpoint.bytes_held(), static_cast<uint64_t>(numbers_.size(1)) * 2);
  EXPECT_EQ(memory.bytes(), static_cast<uint64_t>(numbers_.size(1)) * 2);
}

INSTANTIATE_TEST_SUITE_P(Formats, GgufBlocks,
                         ::testing::Values("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
                                           "Q5_K", "Q6_K"));

TEST(Gguf, HasNamesShapesTypesAndTexts) {
  const std::string four(4, 'x');
  const TensorFileHeader header = gguf_header(gguf_file(
      {{"a", {3, 1}, 0, std::string(12, 'x')},
       {"b", {}, 1, "xx"},
       {"c", {2}, 30, four},
       {"d", {0, 32}, 8, ""},
       {"e", {4}, 24, four}},
      {gguf_value("general.architecture", 8, gguf_text("flux2")), gguf_value("a.number", 6, four),
       gguf_value("a.truth", 7, "x"),
       gguf_value("texts", 9, gguf_number(8, 4) + gguf_number(2, 8) + gguf_text("x") + gguf_text("")),
       gguf_value("lists", 9,
                  gguf_number(9, 4) + gguf_number(1, 8) + gguf_number(4, 4) + gguf_number(1, 8) + four),
       gguf_value("general.alignment", 4, gguf_number(64, 4))},
      64));
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"general.architecture", "flux2"}}));
  EXPECT_EQ(header.data_offset % 64, 0U);
  const auto& tensors = header.tensors;
  ASSERT_EQ(tensors.size(), 5U);
  EXPECT_EQ(tensors.at("a").shape, (std::vector<int64_t>{3, 1}));
  EXPECT_TRUE(tensors.at("b").shape.empty());
  EXPECT_EQ(tensors.at("b").dtype, at::kHalf);
  EXPECT_EQ(tensors.at("c").dtype, at::kBFloat16);
  EXPECT_EQ(tensors.at("c").begin, 128U);
  EXPECT_EQ(tensors.at("c").end, 132U);
  EXPECT_EQ(tensors.at("d").blocks, find_block_format("Q8_0"));
  EXPECT_EQ(tensors.at("e").dtype, at::kChar);
  EXPECT_EQ(tensors.at("e").blocks, nullptr);
}

// What a file says of one tensor `a`.
std::string one_tensor(uint32_t dims, const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset,
                       uint64_t data = 64) {
  std::string file = "GGUF" + gguf_number(3, 4) + gguf_number(1, 8) + gguf_number(0, 8) + gguf_text("a") +
                     gguf_number(dims, 4);
  for (const uint64_t size : sizes) file += gguf_number(size, 8);
  file += gguf_number(type, 4) + gguf_number(offset, 8);
  file.resize((file.size() + 31) / 32 * 32 + data);
  return file;
}

TEST(Gguf, RefusesWhatItCannotRead) {
  EXPECT_EQ(gguf_refusal(one_tensor(1, {16}, 0, 0)), "accepted");
  const std::string again = "it is cut off or damaged; get the file again", four(4, 'x');
  const auto with_value = [&](const std::string& value) { return gguf_file({}, {value}); };
  const std::string version = "GGUF" + gguf_number(1, 4) + gguf_number(0, 8) + gguf_number(0, 8);
  std::string big = version;
  big.replace(4, 4, std::string("\0\0\0\3", 4));
  std::string deep;
  for (int i = 0; i < 20; ++i) deep += gguf_number(9, 4) + gguf_number(1, 8);
  const std::string twice = gguf_file({{"a", {1}, 0, four}, {"a", {1}, 0, four}});
  for (const auto& [file, part] : std::vector<std::pair<std::string, std::string>>{
           {"GGU", "a file of 3 bytes is too short for GGUF: " + again},
           {"GGU.", "is no GGUF file"},
           {version, "version 1 of GGUF cannot be read"},
           {big, "big-endian files of GGUF cannot be read"},
           {"GGUF" + gguf_number(3, 4), again},
           {"GGUF" + gguf_number(3, 4) + gguf_number(UINT64_MAX, 8) + gguf_number(0, 8), again},
           {"GGUF" + gguf_number(3, 4) + gguf_number(0, 8) + gguf_number(UINT64_MAX, 8), again},
           {with_value(gguf_number(1 << 20, 8)), "a name of 1048576 bytes is over the limit of 65535"},
           {with_value(gguf_value("a\n", 7, "x")), "a name has characters that cannot be shown"},
           {with_value(gguf_value("a", 8, gguf_number(UINT64_MAX, 8))), again},
           {with_value(gguf_value("a", 13, four)), "values of type 13 cannot be read"},
           {with_value(gguf_value("a", 9, gguf_number(99, 4) + gguf_number(1, 8))), "arrays of type 99"},
           {with_value(gguf_value("a", 9, gguf_number(10, 4) + gguf_number(UINT64_MAX / 8 + 1, 8))), again},
           {with_value(gguf_value("a", 9, deep)), "arrays in arrays, 9 deep"},
           {with_value(gguf_value("general.alignment", 4, gguf_number(0, 4))), "must be a power of two"},
           {with_value(gguf_value("general.alignment", 4, gguf_number(48, 4))), "must be a power of two"},
           {with_value(gguf_value("general.alignment", 6, four)), "must be a power of two"},
           {with_value(gguf_value("split.count", 2, gguf_number(3, 2))),
            "is one of 3 parts of a file; join them"},
           {with_value(gguf_value("comfy.gguf.orig_shape.a", 9, gguf_number(5, 4) + gguf_number(0, 8))),
            "'comfy.gguf.orig_shape.a' says that a tensor was given another shape"},
           {one_tensor(5, {1, 1, 1, 1, 1}, 0, 0), "'a': 5 dimensions are more than 4"},
           {one_tensor(2, {UINT64_MAX / 2, 4}, 0, 0), "'a': shape is too large to address"},
           {one_tensor(2, {0, UINT64_MAX}, 0, 0), "'a': shape is too large to address"},
           {one_tensor(1, {32}, 20, 0), "'a': weights of type IQ4_NL cannot be read; take a file of Q8_0"},
           {one_tensor(1, {32}, 4, 0), "'a': weights of type 4 cannot be read"},
           {one_tensor(1, {32}, 1000, 0), "'a': weights of type 1000 cannot be read"},
           {one_tensor(2, {48, 2}, 8, 0), "'a': rows of 48 numbers are no whole blocks of Q8_0"},
           {one_tensor(1, {4}, 0, 16), "'a': begins at byte 16 of the data, no multiple of 32"},
           {one_tensor(1, {17}, 0, 0),
            "'a': ends at byte 68 of the data, but the file holds only 64: " + again},
           {one_tensor(1, {16}, 0, UINT64_MAX - 31), "'a': ends at byte 18446744073709551615"},
           {one_tensor(1, {0}, 0, 96), "'a': ends at byte 96 of the data, but the file holds only 64"},
           {twice, "'a' is there twice"}})
    EXPECT_NE(gguf_refusal(file).find(part), std::string::npos) << part << ": " << gguf_refusal(file);
  // The second tensor begins where the first one is.
  std::string overlapping = gguf_file({{"a", {9}, 0, std::string(36, 'x')}, {"b", {1}, 0, four}});
  const size_t place = overlapping.find("b") + 1 + 4 + 8 + 4;
  overlapping.replace(place, 8, gguf_number(32, 8));
  EXPECT_NE(gguf_refusal(overlapping).find("'b': overlaps the tensor before it"), std::string::npos);
  // At every length.
  const std::string whole =
      gguf_file({{"a", {3}, 0, std::string(12, 'x')}},
                {gguf_value("texts", 9, gguf_number(8, 4) + gguf_number(1, 8) + gguf_text("x"))});
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(gguf_refusal(whole.substr(0, length)), "accepted") << length;
}

}  // namespace
}  // namespace tessera::weights
