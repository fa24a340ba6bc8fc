// Pictures to which images refer, against what diffusers' pipeline of FLUX.2 klein makes of them.
#include "engine/reference_pictures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "core/error.h"
#include "media/still_image.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace tessera::engine {
namespace {

Image image_of_bytes(const at::Tensor& pixels) {  // [H, W, 3]
  const auto* const data = pixels.const_data_ptr<uint8_t>();
  return {.height = pixels.size(0), .width = pixels.size(1), .pixels = {data, data + pixels.numel()}};
}

// Height and width of the file, after it is scaled, and for the model.
void expect_sizes(const ReferencePicture& picture, const at::Tensor& sizes) {
  const auto* const expected = sizes.const_data_ptr<int64_t>();
  EXPECT_EQ((std::vector{picture.height, picture.width, picture.scaled_height, picture.scaled_width,
                         picture.model_height, picture.model_width}),
            (std::vector(expected, expected + 6)));
}

std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return fmt::format("{} {}", error.exit_code(), spell(error.what()));
  }
  return "accepted";
}

TEST(ReferencePictures, ArePreparedAsInDiffusers) {
  const auto golden = read_golden("media/references.safetensors");
  for (int64_t i = 0; i < 5; ++i) {
    const auto of = [&](const char* name) { return golden.at(fmt::format("{}.{}", i, name)); };
    const Image image = image_of_bytes(of("from"));
    const ReferencePicture picture =
        reference_picture("", image.height, image.width, 16, of("most_pixels").item<int64_t>());
    expect_sizes(picture, of("sizes"));
    const at::Tensor prepared = prepare_reference(image, picture);
    ASSERT_EQ(prepared.sizes(), of("prepared").sizes()) << i;
    EXPECT_TRUE(at::equal(prepared, of("prepared")))
        << i << ": " << (prepared - of("prepared")).abs().max().item<double>();
  }
}

TEST(ReferencePictures, HaveTheSizesOfDiffusers) {
  const at::Tensor all = read_golden("media/references.safetensors").at("sizes");
  for (int64_t i = 0; i < all.size(0); ++i)
    expect_sizes(reference_picture("", all[i][0].item<int64_t>(), all[i][1].item<int64_t>(), 16), all[i]);
}

TEST(ReferencePictures, AreRefusedAsInDiffusers) {
  const auto refusal_of = [](const char* path, int64_t height, int64_t width, int64_t unit) {
    return refused([&] { reference_picture(path, height, width, unit); });
  };
  EXPECT_EQ(refusal_of("a.png", 64, 512, 16), "accepted");
  EXPECT_EQ(refusal_of("a.png", 63, 512, 16), "3 [a.png] 63 x 512 pixels: sides must be at least 64 pixels");
  EXPECT_EQ(refusal_of("", 64, 63, 16), "2 [image_size] 64 x 63 pixels: sides must be at least 64 pixels");
  EXPECT_EQ(refusal_of("a.png", 64, 100, 128),
            "3 [a.png] 64 x 100 pixels: sides must be at least 128 pixels");
  EXPECT_EQ(refusal_of("a.png", 513, 64, 16),
            "3 [a.png] 513 x 64 pixels: a side may be at most 8 times as long as the other");
}

class ReferenceFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, int64_t height, int64_t width) const {
    const std::string path = folder_.path() / name;
    const Image image{height, width, std::vector<uint8_t>(static_cast<size_t>(height * width * 3), 51)};
    std::ofstream(path, std::ios::binary) << media::encode_image(path, image, {});
    return path;
  }

  TemporaryFolder folder_;
};

TEST_F(ReferenceFiles, SayTheirSizes) {
  const std::vector<std::string> paths = {write("a.png", 70, 100), write("b.jpg", 128, 64)};
  const std::vector<std::string> sizes = sizes_of_pictures(paths);
  EXPECT_EQ(sizes, (std::vector<std::string>{"70x100", "128x64"}));
  const std::vector<ReferencePicture> pictures = reference_pictures(paths, sizes, 16);
  require_pictures(pictures);
  for (const ReferencePicture& each : pictures) {
    const at::Tensor read = read_reference(each);
    EXPECT_EQ(read.sizes(), (at::IntArrayRef{1, 3, each.model_height, each.model_width}));
    EXPECT_LE((read + 0.6).abs().max().item<double>(), 0.02);
  }
  EXPECT_EQ(pictures[0].model_height, 64);
  EXPECT_EQ(pictures[0].model_width, 96);
}

TEST_F(ReferenceFiles, MustBeThePicturesThatWerePlanned) {
  const std::string path = write("a.png", 70, 100);
  const auto pictures = [&](const std::vector<std::string>& paths, const std::vector<std::string>& sizes) {
    return refused([&] { require_pictures(reference_pictures(paths, sizes, 16)); });
  };
  EXPECT_EQ(
      pictures({path}, {"70x101"}),
      fmt::format("3 [{}] is 70 x 100 pixels large, and image_size says 70 x 101; leave that out", path));
  EXPECT_EQ(pictures({}, {"70x100"}),
            "2 [image] there is none for image_size, which is enough for a plan or a trace alone; name it");
  EXPECT_EQ(pictures({path}, {"70x100", "70x100"}),
            "2 [image_size] 2 of them for 1 of image; leave them out");
  EXPECT_NE(pictures({path}, {"70"}).find("2 [image_size] expected two numbers"), std::string::npos);
  EXPECT_NE(refused([&] { sizes_of_pictures({path + "x"}); }).find("3 ["), std::string::npos);
}

}  // namespace
}  // namespace tessera::engine
