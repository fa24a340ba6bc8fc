#include "core/image.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "core/error.h"
#include "core/text.h"

namespace tessera {
namespace {

Image pattern(int64_t height, int64_t width) {
  Image image{height, width, {}};
  for (int64_t i = 0; i < height * width * 3; ++i) {
    image.pixels.push_back(static_cast<uint8_t>((i * 37 + i / 7) % 256));
  }
  return image;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes)
      : path_(testing::TempDir() + "tessera_image_" + std::to_string(::getpid()) + ".png") {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class PngSize : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(PngSize, ReadsBackWhatWasWritten) {
  const Image image = pattern(GetParam().first, GetParam().second);
  const TemporaryFile file(encode_png(image));
  EXPECT_EQ(read_png(file.path()).image, image);
}

INSTANTIATE_TEST_SUITE_P(Sizes, PngSize,
                         testing::Values(std::pair(1, 1), std::pair(1, 300), std::pair(67, 3),
                                         std::pair(128, 96)));

TEST(Png, KeepsTextInEveryScript) {
  const ImageText text = {{"parameters", "a caf\u00e9\nSteps: 20"},
                          {"prompt", "\u732b on a \U0001F697"},
                          {"empty", ""},
                          {"prompt", "a keyword may come twice"}};
  const TemporaryFile file(encode_png(pattern(4, 4), text));
  EXPECT_EQ(read_png(file.path()).text, text);
}

TEST(Png, UsesTheSmallestChunkThatHoldsTheText) {
  EXPECT_NE(encode_png(pattern(1, 1), {{"k", "caf\u00e9"}}).find("tEXtk"), std::string::npos);
  EXPECT_NE(encode_png(pattern(1, 1), {{"k", "\u732b"}}).find("iTXtk"), std::string::npos);
}

// Reads a picture in too little memory and returns whether nothing of it stays in memory. Only a fresh
// process knows what it holds.
bool leaves_nothing(const std::filesystem::path& path) {
  const auto bytes_held = [] { return static_cast<int64_t>(::mallinfo2().uordblks + ::mallinfo2().hblkhd); };
  const int64_t held = bytes_held();
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages;
  const rlimit limit = {pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + 70'000'000, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) return false;
  try {
    read_png(path);
  } catch (const std::bad_alloc&) {
    return bytes_held() - held < 1'000'000;
  }
  return false;
}

TEST(Png, KeepsNoMemoryWhenThereIsTooLittle) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends a program that has too little memory";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process of its own
  constexpr int64_t kSide = 4000;
  const TemporaryFile file(encode_png({kSide, kSide, std::vector<uint8_t>(kSide * kSide * 3)}));
  const auto read_and_leave = [&] {
    const bool is_clean = leaves_nothing(file.path());
    std::filesystem::remove(file.path());  // the file of this process, which ends here
    std::_Exit(is_clean ? 0 : 1);
  };
  EXPECT_EXIT(read_and_leave(), testing::ExitedWithCode(0), "");
}

TEST(Png, RefusesDamagedFiles) {
  const std::string bytes = encode_png(pattern(8, 8), {{"prompt", "x"}});
  for (size_t length = 0; length < bytes.size(); ++length) {
    const TemporaryFile file(bytes.substr(0, length));
    EXPECT_THROW(read_png(file.path()), Error) << length;
  }
  EXPECT_THROW(read_png("/nonexistent.png"), Error);
}

struct Utf8Case {
  std::string text;
  std::optional<size_t> invalid_at;
};

class Utf8 : public testing::TestWithParam<Utf8Case> {};

TEST_P(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(GetParam().text), GetParam().invalid_at);
}

INSTANTIATE_TEST_SUITE_P(Texts, Utf8,
                         testing::Values(Utf8Case{"", {}}, Utf8Case{"plain", {}},
                                         Utf8Case{"\u00e9\u732b\U0001F697\U0010FFFF", {}},
                                         Utf8Case{"ab\x80", 2},            // continuation alone
                                         Utf8Case{"\xC0\xAF", 0},          // overlong
                                         Utf8Case{"\xE0\x80\xAF", 0},      // overlong
                                         Utf8Case{"x\xED\xA0\x80", 1},     // surrogate
                                         Utf8Case{"\xF4\x90\x80\x80", 0},  // above U+10FFFF
                                         Utf8Case{"\xF8\x88\x80\x80\x80", 0}, Utf8Case{"\xE7\x8C", 0},
                                         Utf8Case{"\xFF", 0}));

TEST(Utf8, IsCutBetweenCharacters) {
  const std::string text = "a\u00e9\u732b\U0001F697";  // of 1, 2, 3 and 4 bytes
  const std::vector<size_t> lengths = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (size_t most = 0; most < lengths.size(); ++most)
    EXPECT_EQ(cut_utf8(text, most).size(), lengths[most]) << most;
  EXPECT_EQ(cut_utf8("\x80\x80\x80\x80\x80\x80", 5).size(), 2U) << "no character is longer";
}

TEST(Latin1, ConvertsBothWays) {
  std::string latin1;
  for (int code = 1; code < 256; ++code) latin1 += static_cast<char>(code);
  EXPECT_EQ(to_latin1(from_latin1(latin1)), latin1);
  EXPECT_EQ(to_latin1("\u0100"), std::nullopt);
  EXPECT_EQ(to_latin1("\u732b"), std::nullopt);
}

}  // namespace
}  // namespace tessera
