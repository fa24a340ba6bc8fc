#include "engine/video_decode.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <mutex>
#include <numeric>

#include "models/autoencoder_kl.h"
#include "models/stdit/frame_vae.h"
#include "models/stdit/video_vae.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"

namespace tessera::engine {
namespace {

constexpr models::Decoder::Clip kClip{4, 2};

// Two frames of a latent: its values, then their negatives; the second clip of each latent depends on the
// first one of the clip. Keeps the number of rows of every call.
class ToyDecoder final : public models::Decoder {
 public:
  at::Tensor decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& tokens,
                         models::ClipMemory* /*memory*/) const override {
    rows.push_back(z.size(2));
    EXPECT_EQ(tokens.held().rows, z.size(2));
    const at::Tensor x = z + 0.5 * z.narrow(0, 0, 1);
    return at::stack({x, -x}, 1)
        .flatten(0, 1)
        .narrow(0, 0, frames)
        .repeat_interleave(2, 2)
        .repeat_interleave(2, 3);
  }
  Clip clip() const override { return kClip; }
  int64_t scale_factor() const override { return 2; }
  int64_t clip_bytes(int64_t height, int64_t width) const override { return 100 * height * width; }

  mutable std::vector<int64_t> rows;
};

at::Tensor latents(int64_t frames) {
  return at::arange((frames + 1) / 2 * 3 * 5 * 4, at::kFloat).view({-1, 3, 5, 4}).sin();
}

// All frames, [F, H, W, 3], from clips that are decoded one by one.
at::Tensor expected(int64_t frames) {
  const ToyDecoder decoder;
  const at::Tensor z = latents(frames);
  std::vector<at::Tensor> clips;
  for (int64_t first = 0; first < frames; first += kClip.frames) {
    nn::Tokens tokens(parallel::Grid{.rows = z.size(2), .columns = z.size(3)});
    const int64_t count = std::min(kClip.frames, frames - first);
    clips.push_back(decoder.decode_clip(z.narrow(0, first / 2, (count + 1) / 2), count, tokens, nullptr));
  }
  return at::concat(clips).permute({0, 2, 3, 1});
}

struct Case {
  int64_t frames, ranks;
  bool deals;
};

VideoDecodeOptions options_of(std::optional<bool> deals, std::optional<int64_t> memory = {}) {
  const auto convert = [](const at::Tensor& x) { return x.permute({0, 2, 3, 1}); };
  return {.convert = convert, .deals_clips = deals, .memory = memory};
}

// Decodes on ranks with the options that `options` gives for each, and expects every frame once, in order,
// and that the ranks deal clips as long as there is one for each, or that they never do.
void expect_frames(int64_t frames, int64_t ranks, bool deals,
                   const std::function<VideoDecodeOptions(int64_t rank)>& options) {
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(ranks));
  comm::run_ranks_as_threads(ranks, [&](comm::World world) {
    const c10::InferenceMode inference_mode;
    std::vector<int64_t> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    const comm::Group group = world.group(all, "vae");
    const ToyDecoder decoder;
    std::vector<at::Tensor> clips;
    decode_video(decoder, latents(frames), frames, group, options(world.rank()),
                 [&](const at::Tensor& x) { clips.push_back(x); });
    rows[static_cast<size_t>(world.rank())] = decoder.rows;
    if (world.rank() == 0) {
      EXPECT_TRUE(at::equal(at::concat(clips), expected(frames)));
      for (const at::Tensor& clip : clips) EXPECT_LE(clip.size(0), kClip.frames);
    } else {
      EXPECT_TRUE(clips.empty());
    }
  });
  // Clips of four frames are whole as long as all ranks get one; of the rest each rank has some of 5 rows.
  const int64_t clips = (frames + 3) / 4, rounds = deals ? frames / 4 / ranks : 0;
  for (const std::vector<int64_t>& of_rank : rows) {
    ASSERT_EQ(static_cast<int64_t>(of_rank.size()), rounds + clips - rounds * ranks);
    for (size_t i = 0; i < of_rank.size(); ++i)
      EXPECT_EQ(of_rank[i] == 5, ranks == 1 || static_cast<int64_t>(i) < rounds) << i;
  }
}

class VideoDecodeOnRanks : public ::testing::TestWithParam<Case> {};

TEST_P(VideoDecodeOnRanks, GivesEveryFrameOnceInOrder) {
  const bool deals = GetParam().deals;
  expect_frames(GetParam().frames, GetParam().ranks, deals, [&](int64_t) { return options_of(deals); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, VideoDecodeOnRanks,
                         ::testing::Values(Case{3, 1, true}, Case{17, 1, true}, Case{16, 2, true},
                                           Case{16, 2, false}, Case{15, 2, true}, Case{12, 3, true},
                                           Case{22, 3, true}, Case{9, 4, true}),
                         [](const auto& info) {
                           return fmt::format("{}Frames{}Ranks{}", info.param.frames, info.param.ranks,
                                              info.param.deals ? "" : "InRows");
                         });

// Of five whole clips the first rank takes three; the sixth is cut into three and two rows.
TEST(VideoDecodeRanks, OfUnequalSharesTakeClipsByThem) {
  constexpr int64_t kFrames = 5 * 4 + 2;
  std::vector<std::vector<int64_t>> rows(2);
  comm::run_ranks_as_threads(2, [&](comm::World world) {
    const c10::InferenceMode inference_mode;
    comm::Group group = world.group({0, 1}, "vae");
    group.shares = {{3, 2}};
    const ToyDecoder decoder;
    std::vector<at::Tensor> clips;
    decode_video(decoder, latents(kFrames), kFrames, group, options_of(true),
                 [&](const at::Tensor& x) { clips.push_back(x); });
    rows[static_cast<size_t>(world.rank())] = decoder.rows;
    if (world.rank() != 0) return;
    EXPECT_TRUE(at::equal(at::concat(clips), expected(kFrames)));
    EXPECT_EQ(clips.size(), 6U);
  });
  EXPECT_EQ(rows[0], (std::vector<int64_t>{5, 5, 5, 3}));
  EXPECT_EQ(rows[1], (std::vector<int64_t>{5, 5, 2}));
}

// A clip takes 2000 bytes, and three ranks share a machine.
TEST(VideoDecodeRanks, UnlikeMachinesDealClipsWhereAllHaveTheMemory) {
  expect_frames(22, 3, true, [](int64_t rank) { return options_of({}, 12000 + 1000 * rank); });
  for (int64_t small = 0; small < 3; ++small)
    expect_frames(22, 3, false, [&](int64_t rank) { return options_of({}, rank == small ? 11999 : 24000); });
}

TEST(VideoDecode, DealsClipsWhereHalfOfTheMemoryHoldsThem) {
  const ToyDecoder decoder;
  const at::Tensor z = latents(8);  // 5 x 4, so a clip takes 2000 bytes
  EXPECT_TRUE(has_memory_for_clips(decoder, z, 1, 4000));
  EXPECT_FALSE(has_memory_for_clips(decoder, z, 1, 3999));
  EXPECT_TRUE(has_memory_for_clips(decoder, z, 3, 12000));
  EXPECT_FALSE(has_memory_for_clips(decoder, z, 3, 11999));
  // Each rank has a device.
  EXPECT_TRUE(has_memory_for_clips(decoder, z.to(at::kMeta), 3, 4000));
}

// Each frame is the latent plus half of the one before, whose rows the clip before has left; the first latent
// makes one frame, the others two.
class CausalDecoder final : public models::Decoder {
 public:
  struct Memory final : models::ClipMemory {
    at::Tensor latent;
  };

  at::Tensor decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& /*tokens*/,
                         models::ClipMemory* memory) const override {
    at::Tensor& before = dynamic_cast<Memory&>(*memory).latent;
    EXPECT_EQ(before.defined() ? 2 : 1, frames);
    const at::Tensor x = before.defined() ? z + 0.5 * before : z;
    before = z;
    return x.expand({frames, -1, -1, -1});
  }
  std::unique_ptr<models::ClipMemory> begin_video() const override { return std::make_unique<Memory>(); }
  Clip clip() const override { return {.frames = 2, .latents = 1, .first_frames = 1}; }
  int64_t scale_factor() const override { return 1; }
  int64_t clip_bytes(int64_t /*height*/, int64_t /*width*/) const override { return 0; }
};

// Also where every rank would have memory for whole clips.
TEST(VideoDecodeOnRanks, ClipsTakeWhatTheClipBeforeHasLeft) {
  constexpr int64_t kLatents = 4, kFrames = 1 + 2 * (kLatents - 1);
  const at::Tensor z = at::arange(kLatents * 3 * 5 * 2, at::kFloat).view({kLatents, 3, 5, 2}).sin();
  std::vector<at::Tensor> frames = {z[0]};
  for (int64_t i = 1; i < kLatents; ++i) frames.insert(frames.end(), 2, z[i] + 0.5 * z[i - 1]);
  const at::Tensor whole = at::stack(frames);
  for (const int64_t ranks : {1, 2, 3}) {
    comm::run_ranks_as_threads(ranks, [&](comm::World world) {
      std::vector<int64_t> all(static_cast<size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      const comm::Group group = world.group(all, "vae");
      comm::connect(group, at::kCPU);
      const VideoDecodeOptions options{.convert = [](const at::Tensor& x) { return x.permute({0, 2, 3, 1}); },
                                       .deals_clips = true};
      for (int video = 0; video < 2; ++video) {  // each begins without a memory
        std::vector<at::Tensor> clips;
        decode_video(CausalDecoder(), z, kFrames, group, options,
                     [&](const at::Tensor& x) { clips.push_back(x); });
        if (world.rank() != 0) continue;
        ASSERT_EQ(clips.size(), 4U);
        EXPECT_TRUE(at::concat(clips).permute({0, 3, 1, 2}).equal(whole)) << ranks << " ranks";
      }
    });
  }
}

// As Open-Sora 1.1 does.
TEST(VideoDecode, DecodesEachFrameApart) {
  const c10::InferenceMode inference_mode;
  models::LoadStatistics statistics;
  const std::shared_ptr<models::AutoencoderKLDecoder> image_decoder =
      models::load_autoencoder_kl_decoder(golden_folder("vae-quant"), {}, statistics);
  const models::FrameDecoder decoder(image_decoder);
  const int64_t channels = read_golden("vae-quant/golden/golden.safetensors").at("latents").size(1);
  const at::Tensor z = at::randn({6, channels, 5, 4});
  std::vector<at::Tensor> frames;
  decode_video(decoder, z, 6, {}, {.convert = [](const at::Tensor& x) { return x; }},
               [&](const at::Tensor& x) { frames.push_back(x); });
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].size(0), 4);
  const at::Tensor all = at::concat(frames);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_LE(relative_error(all.narrow(0, i, 1), image_decoder->decode(z.narrow(0, i, 1))),
              kComponentTolerance);
  }
}

}  // namespace
}  // namespace tessera::engine
