#include "launch/fingerprint.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

class FingerprintTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "vae" / "deeper");
    write("model_index.json", "{}");
    write("vae/config.json", "{\"a\": 1}");
    write("vae/weights.safetensors", std::string(1 << 20, 'x'));
    write("README.md", "text");
    write("vae/deeper/config.json", "{}");
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(FingerprintTest, NamesTheBuild) {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string program(std::istreambuf_iterator<char>(file), {});
  // The head of the note: lengths of the name and of the id, the type, the name.
  const std::string head("\4\0\0\0\24\0\0\0\3\0\0\0GNU\0", 16);
  const size_t at = program.find(head);
  ASSERT_NE(at, std::string::npos) << "this program was linked without a build id";
  std::string id;
  for (size_t i = 0; i < 20; ++i)
    id += fmt::format("{:02x}", static_cast<unsigned char>(program[at + head.size() + i]));
  EXPECT_TRUE(make_fingerprint(folder_)["build"].ends_with(", build " + id))
      << make_fingerprint(folder_)["build"];
}

TEST_F(FingerprintTest, SaysWhatDiffers) {
  const Fingerprint first = make_fingerprint(folder_);
  EXPECT_EQ(first.size(), 4U);  // the build and three files
  EXPECT_EQ(difference(first, make_fingerprint(folder_)), "");
  EXPECT_EQ(difference(first, read_fingerprint(write_fingerprint(first))), "");
  write("README.md", "other");
  write("latents.safetensors", "of another run");
  EXPECT_EQ(difference(first, make_fingerprint(folder_)), "") << "nobody reads them";

  write("single.safetensors", "weights");
  const Fingerprint single = make_fingerprint(folder_, folder_ / "single.safetensors");
  write("single.safetensors", "Weights");
  EXPECT_TRUE(difference(single, make_fingerprint(folder_, folder_ / "single.safetensors"))
                  .starts_with("has a different single file: 7 bytes, "));

  write("vae/config.json", "{\"a\": 2}");
  const std::string changed = difference(first, make_fingerprint(folder_));
  EXPECT_TRUE(changed.starts_with("has a different vae/config.json: 8 bytes, ")) << changed;
  write("vae/config.json", "{\"a\": 1}");
  for (const size_t at : {size_t{100}, size_t{(1 << 20) - 1}}) {  // in the header and at the end
    std::string weights(1 << 20, 'x');
    weights[at] = 'y';
    write("vae/weights.safetensors", weights);
    EXPECT_TRUE(
        difference(first, make_fingerprint(folder_)).starts_with("has a different vae/weights.safetensors"));
  }
  write("vae/weights.safetensors", std::string(1 << 20, 'x'));
  for (const char* name : {"vae/merges.txt", "vae/spiece.model"}) {  // of tokenizers
    write(name, "a");
    const Fingerprint with = make_fingerprint(folder_);
    write(name, "b");
    EXPECT_TRUE(
        difference(with, make_fingerprint(folder_)).starts_with(fmt::format("has a different {}", name)));
    fs::remove(folder_ / name);
  }
  fs::remove(folder_ / "vae/weights.safetensors");
  EXPECT_EQ(difference(first, make_fingerprint(folder_)), "has no vae/weights.safetensors");
  write("vae/weights.fp16.safetensors", "x");
  EXPECT_EQ(difference(first, make_fingerprint(folder_)),
            "has no vae/weights.safetensors (and 1 difference more)");
  fs::remove_all(folder_);
  EXPECT_EQ(make_fingerprint(folder_).size(), 1U);
}

TEST(Fingerprint, BelievesNothing) {
  using namespace std::string_literals;
  EXPECT_TRUE(read_fingerprint("no end").empty());
  EXPECT_TRUE(read_fingerprint("name\0no end"s).empty());
  EXPECT_EQ(read_fingerprint("a\0b\0c"s), (Fingerprint{{"a", "b"}}));
  EXPECT_EQ(difference({{"build", "1"}}, {}), "has no build");
  EXPECT_EQ(difference({{"build", "1"}}, {{"build", "1"}, {"x", "y"}}), "has x, which rank 0 lacks");
}

}  // namespace
}  // namespace tessera::launch
