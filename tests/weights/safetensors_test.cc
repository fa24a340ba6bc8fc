#include "weights/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "core/error.h"
#include "core/file.h"

namespace tessera::weights {
namespace {

// Returns the bytes of a file: the header's length, the header and the data.
std::string make_file(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

TensorFileHeader parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), file.size(), "test");
}

std::string refusal(const std::string& file) {
  try {
    parse(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 3);
    return error.what();
  }
  return "accepted";
}

const std::string kTwoTensors =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},)"
    R"("__metadata__":{"format":"pt"}})";

TEST(Safetensors, ReadsEntriesAndMetadata) {
  const TensorFileHeader header = parse(make_file(kTwoTensors, std::string(10, 'x')));
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors.at("a").shape, std::vector<int64_t>{2});
  EXPECT_EQ(header.tensors.at("b").dtype, at::kBFloat16);
  EXPECT_EQ(header.tensors.at("b").begin, 8U);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(Safetensors, RefusesAFileCutAtAnyByte) {
  const std::string whole = make_file(kTwoTensors, std::string(10, 'x'));
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string message = refusal(whole.substr(0, length));
    EXPECT_TRUE(message.ends_with("it is cut off or damaged; get the file again"))
        << length << ": " << message;
  }
  EXPECT_NE(refusal(whole + "x"), "accepted");
}

struct BadHeader {
  std::string header;
  std::string message;  // a part of the message
};

class SafetensorsRefuses : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsRefuses, WithAMessage) {
  const std::string message = refusal(make_file(GetParam().header, std::string(8, 'x')));
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsRefuses,
    ::testing::Values(
        BadHeader{"[]", "must be a JSON object"}, BadHeader{"{", "not valid JSON"},
        BadHeader{R"({"a":1})", "expected an object"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2]}})", "'data_offsets' is missing"},
        BadHeader{R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", "dtype \"F99\""},
        BadHeader{R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "non-negative"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", "non-negative"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "expected 12 bytes, got 8"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "backwards"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "cut off or damaged"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "a gap of 4 bytes before it belongs to no tensor"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "end at byte 4"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "overlaps"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})",
                  "too large"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}})",
                  "too large"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"x":1}})",
                  "strings"},
        BadHeader{std::string(200, '['), "nested deeper"}));

TEST(Safetensors, OneByteIsNoPlural) {
  const auto header = [](const char* shape, const char* offsets) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":{}}}}})", shape, offsets);
  };
  for (const std::string& message : {refusal("x"), refusal(make_file("{", "").substr(0, sizeof(uint64_t))),
                                     refusal(make_file(header("1", "[0,8]"), "12345678")),
                                     refusal(make_file(header("7", "[1,8]"), "12345678"))}) {
    EXPECT_NE(message.find("1 byte"), std::string::npos) << message;
    EXPECT_EQ(message.find("1 bytes"), std::string::npos) << message;
  }
}

TEST(Safetensors, RefusesAnAbsurdHeaderLength) {
  const uint64_t length = uint64_t{1} << 60;
  const std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  EXPECT_NE(refusal(file + "{}").find("over the limit"), std::string::npos);
  EXPECT_NE(refusal("GGUF" + std::string(60, '\0')).find("is a GGUF file, which holds a transformer alone"),
            std::string::npos);
  EXPECT_NE(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\n").find("git lfs pull"),
            std::string::npos);
}

TEST(Safetensors, WritesWhatItReads) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("tessera-{}.safetensors", ::getpid());
  const at::Tensor a = at::randn({3, 5});
  const at::Tensor b = at::randn({2, 2}).to(at::kHalf);
  write_safetensors(path, {{"a", a}, {"b", b.t()}}, {{"note", "x"}});
  const SafetensorsFile file(path);
  const auto bytes = file.bytes(file.header().tensors.at("a"));
  EXPECT_EQ(std::memcmp(bytes.data(), a.const_data_ptr(), bytes.size()), 0);
  EXPECT_EQ(file.header().tensors.at("b").shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(file.header().metadata.at("note"), "x");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tessera::weights
