#include "engine/references.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include <fstream>

#include "core/error.h"
#include "core/image.h"
#include "core/log.h"
#include "media/video_writer.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/tiny_open_sora.h"

namespace tessera::engine {
namespace {

constexpr int64_t kReferenceSide = 16, kClipFrames = 17, kClipLatents = 5;

// Latents are the mean of the frames of each clip, and count on from there.
class CountingEncoder : public models::Encoder {
 public:
  at::Tensor encode(const at::Tensor& frames) const override {
    ++clips;
    const models::LatentScale& scale = tiny_video().scale;
    const int64_t latents = scale.latent_frames(frames.size(0));
    const at::Tensor mean = frames.mean() * 100;
    return at::arange(latents, at::kFloat).view({latents, 1, 1, 1}).expand({latents, 4, 2, 2}) * 1000 + mean;
  }

  mutable int clips = 0;
};

class ReferencesTest : public FolderFixture {
 protected:
  // Each frame has a grey of its own.
  std::string video(const std::string& name, int64_t frames) const {
    std::string path = folder_ / name;
    media::VideoWriter writer(path, {.height = kReferenceSide, .width = kReferenceSide});
    for (int64_t i = 0; i < frames; ++i)
      writer.write(std::vector<uint8_t>(kReferenceSide * kReferenceSide * 3, static_cast<uint8_t>(2 * i)));
    writer.commit();
    return path;
  }
  std::string image(const std::string& name) const {
    std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << encode_png(
        {kReferenceSide, kReferenceSide, std::vector<uint8_t>(kReferenceSide * kReferenceSide * 3, 77)});
    return path;
  }

  // Of the paths and the mask strategy of each prompt.
  Settings begun_from(const std::vector<std::string>& paths, const std::vector<std::string>& strategies,
                      int64_t loops = 1) const {
    const Json request = {{"prompt", std::vector<std::string>(paths.size(), "a")},
                          {"seed", 1},
                          {"height", kReferenceSide},
                          {"width", kReferenceSide},
                          {"num_frames", 2 * kClipFrames},
                          {"loop", loops},
                          {"reference_path", paths},
                          {"mask_strategy", strategies}};
    return resolve(read_fields(request_fields(), request), tiny_video());
  }

  std::vector<std::string> warnings_of(const Settings& settings) const {
    std::vector<std::string> warnings;
    const ScopedLogSink sink(
        [&](LogLevel, const std::string& message) { warnings.push_back(spell(message)); });
    const References references({&settings, 1}, tiny_video().scale);
    return warnings;
  }

  std::string refusal_of(const Settings& settings, ErrorKind kind) const {
    try {
      References({&settings, 1}, tiny_video().scale);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      return spell(error.what());
    }
    return "accepted";
  }
};

TEST_F(ReferencesTest, EncodesTheClipsThatAreUsedOncePerFile) {
  const std::string path = video("a.gif", 7 * kClipFrames);
  const Settings settings =
      begun_from({path, path + ";" + path, path}, {"0,0,0,0,5", "0,0,0,0,1;0,1,15,5,5", "0,0,-5,0,2"});
  References references({&settings, 1}, tiny_video().scale);
  const CountingEncoder encoder;
  const GivenLatents given = references.given(0, encoder);
  EXPECT_EQ(encoder.clips, 3) << "the first clip, the fourth, and the last";
  // The frames before and between them count.
  const auto mean_of_clip = [](int64_t clip) {
    const double grey = 2 * (static_cast<double>(clip * kClipFrames) + (kClipFrames - 1) / 2.0);
    return (grey / 255 - 0.5) / 0.5 * 100;
  };
  const auto at = [&](int64_t video, int64_t frame) { return given.z[video][0][frame][0][0].item<double>(); };
  EXPECT_NEAR(at(0, 0), mean_of_clip(0), 0.1);
  EXPECT_NEAR(at(0, 4), mean_of_clip(0) + 4000, 0.1);
  EXPECT_NEAR(at(1, kClipLatents), mean_of_clip(3), 0.1);
  EXPECT_NEAR(at(2, 1), mean_of_clip(6) + 1000, 0.1);
  EXPECT_EQ(given.placed.sum().item<double>(), 5 + 6 + 2);
}

TEST_F(ReferencesTest, ReadsAFileBeforeThereIsAnEncoder) {
  const std::string good = image("good.png");
  EXPECT_EQ(refusal_of(begun_from({good + ";" + (folder_ / "none.png").string()}, {"0"}), ErrorKind::kInput),
            "[" + (folder_ / "none.png").string() + "] no such file");
  EXPECT_EQ(refusal_of(begun_from({"https://example.org/a.mp4"}, {"0"}), ErrorKind::kInput),
            "[https://example.org/a.mp4] URLs are not fetched; download the file, and name that");
  EXPECT_EQ(refusal_of(begun_from({good}, {"0,0,1"}), ErrorKind::kUsage),
            "[mask_strategy] 1 is not a frame of the reference, which has 1 latent frame");
  EXPECT_EQ(refusal_of(begun_from({video("a.gif", 20)}, {"0,0,6"}), ErrorKind::kUsage),
            "[mask_strategy] 6 is not a frame of the reference, which has 6 latent frames");
  EXPECT_EQ(refusal_of(begun_from({good}, {"0"}), ErrorKind::kInput), "accepted");
}

TEST_F(ReferencesTest, WarnsOfFramesThatThereAreNot) {
  const std::string still = image("a.png"), moving = video("a.gif", 2 * kClipFrames);
  EXPECT_EQ(warnings_of(begun_from({still}, {"0,0,0,0,99"})),
            std::vector<std::string>{"[" + still +
                                     "] has 1 of the 10 latent frames that mask_strategy takes of it"});
  EXPECT_EQ(warnings_of(begun_from({moving}, {"0,0,5,0,6"})),
            std::vector<std::string>{"[" + moving +
                                     "] has 5 of the 6 latent frames that mask_strategy takes of it"});
  // More than the video has frames for is no more than it takes.
  EXPECT_TRUE(warnings_of(begun_from({moving}, {"0,0,0,0,99;0,0,0,5,9"})).empty());
}

// The end of a file is looked for only where something depends on it.
TEST_F(ReferencesTest, AlignsStartsAsIfAllFramesWereCounted) {
  const std::string path = video("a.gif", 6 * kClipFrames);
  const CountingEncoder encoder;
  for (const auto& [start, clip] : {std::pair<int64_t, int64_t>{2, 0}, {3, 1}, {23, 5}, {28, 5}, {29, 5}}) {
    const Settings settings = begun_from({path}, {"0,0," + std::to_string(start)});
    References references({&settings, 1}, tiny_video().scale);
    const double expected = ((2 * (static_cast<double>(clip * kClipFrames) + 8)) / 255 - 0.5) / 0.5 * 100;
    EXPECT_NEAR(references.given(0, encoder).z[0][0][0][0][0].item<double>(), expected, 0.1) << start;
  }
}

// A strategy may name a part before as a reference, and any of its frames.
TEST_F(ReferencesTest, KeepsThePartsThatAStrategyNames) {
  const Settings settings = begun_from({image("a.png")}, {"0;1,1,0,5,5"}, 2);
  References references({&settings, 1}, tiny_video().scale);
  const CountingEncoder encoder;
  references.given(0, encoder);
  const at::Tensor grey = at::concat({at::full({kClipFrames, 3, kReferenceSide, kReferenceSide}, 0.25),
                                      at::full({kClipFrames, 3, kReferenceSide, kReferenceSide}, 0.75)});
  references.add_decoded(0, grey);
  const at::Tensor z = references.given(1, encoder).z[0][0];
  EXPECT_EQ(z[0][0][0].item<float>(), 75) << "continues the part before";
  EXPECT_EQ(z[5][0][0].item<float>(), 25) << "and takes its beginning";
}

TEST_F(ReferencesTest, EncodesOfThePartBeforeOnlyWhatIsContinued) {
  const Settings settings = begun_from({image("a.png")}, {"0"}, 2);
  References references({&settings, 1}, tiny_video().scale);
  const CountingEncoder encoder;
  references.given(0, encoder);
  encoder.clips = 0;
  for (const double value : {0.25, 0.75})
    references.add_decoded(0, at::full({kClipFrames, 3, kReferenceSide, kReferenceSide}, value));
  EXPECT_EQ(references.given(1, encoder).z[0][0][0][0][0].item<float>(), 75);
  EXPECT_EQ(encoder.clips, 1) << "the last clip";
}

// Frames of the reference are 1, 2, ...; so what stands in the video says where each came from.
TEST(Placement, PlacesFramesAsTheOracle) {
  const Json golden = read_json(golden_folder("open_sora_request.json"));
  for (const Json& each : golden.at("placements")) {
    const auto number = [&](const char* key) { return each.at(key).get<int64_t>(); };
    const int64_t frames = number("target_frames"), all = number("reference_frames");
    const std::optional<int64_t> align =
        each.at("align").is_null() || number("align") == 0 ? std::nullopt : std::optional(number("align"));
    const std::vector<at::Tensor> references = {at::arange(1, all + 1, at::kFloat).view({1, all, 1, 1})};
    const GivenRange range{.reference_start = number("start"),
                           .target_start = number("target"),
                           .length = number("length"),
                           .edit = 0.25};
    at::Tensor z = at::zeros({1, frames, 1, 1}), placed = at::zeros({frames});
    if (each.at("expected").is_null()) {
      EXPECT_THROW(place_references({range}, 0, references, align, z, placed), Error) << each.dump();
      continue;
    }
    const at::Tensor mask = place_references({range}, 0, references, align, z, placed);
    const auto expected = each.at("expected").get<std::vector<int64_t>>();  // start, target, length
    at::Tensor wanted = at::zeros({frames});
    wanted.narrow(0, expected[1], expected[2])
        .copy_(at::arange(expected[0] + 1, expected[0] + expected[2] + 1, at::kFloat));
    EXPECT_TRUE(z.view({frames}).equal(wanted)) << each.dump();
    EXPECT_TRUE(placed.equal((wanted > 0).to(at::kFloat))) << each.dump();
    EXPECT_TRUE(mask.equal(at::where(wanted > 0, 0.25F, 1.0F).to(at::kFloat))) << each.dump();
  }
}

TEST(Placement, TakesTheLastReferenceForMinusOne) {
  at::Tensor z = at::zeros({1, 2, 1, 1}), placed = at::zeros({2});
  const std::vector<at::Tensor> references = {at::full({1, 1, 1, 1}, 3.0F), at::full({1, 1, 1, 1}, 5.0F)};
  place_references({{.reference = -1}, {.loop = 2}}, 0, references, std::nullopt, z, placed);
  EXPECT_EQ(z[0][0].item<float>(), 5);
  EXPECT_THROW(place_references({{.reference = 2}}, 0, references, {}, z, placed), Error);
  EXPECT_THROW(place_references({{.reference = -3}}, 0, references, {}, z, placed), Error);
}

TEST(Placement, SaysHowManyFramesAReferenceHas) {
  at::Tensor z = at::zeros({1, 2, 1, 1}), placed = at::zeros({2});
  try {
    place_references({{.reference_start = 7}}, 0, {at::zeros({1, 1, 1, 1})}, {}, z, placed);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).ends_with(", which has 1 latent frame")) << error.what();
  }
}

}  // namespace
}  // namespace tessera::engine
