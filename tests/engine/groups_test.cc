// Tests that pictures are the same in whatever groups they are generated, and are finished group by group.
#include "engine/groups.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/host.h"
#include "tests/support/generate.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"

namespace tessera::engine {
namespace {

// Two pictures of this size are a group on one rank.
Request large_request(std::vector<std::string> prompts, uint64_t seed = 3) {
  Request request = tiny_request(512, 512, seed, std::move(prompts));
  request.num_inference_steps = 2;
  request.scheduler = "EulerAncestralDiscreteScheduler";  // draws noise in each step
  return request;
}

Settings five_large_pictures() {
  Request request = large_request({"a cat", "a dog", "a red circle above a blue square", "a house", "a cat"});
  request.negative_prompts = {"blurry"};
  request.output_type = OutputType::kLatent;
  return resolve(request, tiny());
}

// The result on ranks, with the number of groups that the steps tell.
Result result_of(const parallel::ParallelOptions& options, const Settings& settings, int64_t groups) {
  const parallel::Layout layout = parallel::resolve_layout(options, workload(settings, tiny()), std::nullopt);
  Result result;
  comm::run_ranks_as_threads(
      options.degrees(),
      [&](const comm::World& world) {
        Result own = generate(settings, tiny(), {}, world, layout);
        if (world.rank() == 0) result = std::move(own);
      },
      comm::Wire::kShared);
  EXPECT_EQ(static_cast<int64_t>(result.step_seconds.size()), groups * settings.steps);
  return result;
}

parallel::Ranks ranks_of(int64_t data, int64_t replica) {
  parallel::Ranks ranks;
  ranks.data.size = data;
  ranks.replica.size = replica;
  return ranks;
}

TEST(Groups, AreFewAndEvenAndLeaveNoReplicaIdle) {
  using Ranges = std::vector<Range>;
  const auto divided = [](int64_t count, int64_t pixels, int64_t data = 1, int64_t replica = 1) {
    return divide_pictures(count, pixels, ranks_of(data, replica), at::kCPU);
  };
  EXPECT_EQ(divided(5, int64_t{64} * 64), (Ranges{{0, 2}, {2, 2}, {4, 1}}));
  EXPECT_EQ(divided(9, int64_t{32} * 32), (Ranges{{0, 5}, {5, 4}}));
  EXPECT_EQ(divided(3, int64_t{128} * 128), (Ranges{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(divided(100, int64_t{8} * 8), (Ranges{{0, 100}}));
  EXPECT_EQ(divided(4, int64_t{64} * 64, 1, 2), (Ranges{{0, 4}})) << "ranks that share a picture";
  EXPECT_EQ(divided(8, int64_t{64} * 64, 2), (Ranges{{0, 4}, {4, 4}})) << "each replica has two";
  EXPECT_EQ(divided(7, int64_t{128} * 128, 4), (Ranges{{0, 7}}))
      << "a second group would have three for four replicas";
  EXPECT_EQ(divided(9, int64_t{128} * 128, 4), (Ranges{{0, 5}, {5, 4}}));
}

// A replica takes one large picture at a time, and one of twice the share two.
TEST(Groups, HaveRoundsOfUnequalReplicas) {
  parallel::Ranks ranks = ranks_of(2, 1);
  ranks.data.shares = {{2, 1}};
  const auto divided = [&](int64_t count) {
    return divide_pictures(count, int64_t{128} * 128, ranks, at::kCPU);
  };
  EXPECT_EQ(divided(6), (std::vector<Range>{{0, 3}, {3, 3}}));
  EXPECT_EQ(divided(2), (std::vector<Range>{{0, 2}}));
  EXPECT_EQ(divided(7), (std::vector<Range>{{0, 4}, {4, 3}}));
}

TEST(Groups, OnAGpuAreLarger) {
  EXPECT_EQ(divide_pictures(16, int64_t{128} * 128, ranks_of(1, 1), at::kCUDA),
            (std::vector<Range>{{0, 8}, {8, 8}}));
}

// A group encodes nothing anew and carries no prompts of others.
TEST(Groups, TakeTheirOwnPrompts) {
  const Settings settings = five_large_pictures();
  const Batch batch(std::span(&settings, 1));
  const std::vector<Group> groups = make_groups(batch, settings, {}, false);
  ASSERT_EQ(groups.size(), 3U);
  std::vector<models::Conditioning> all;
  for (const models::Prompt& prompt : batch.prompts) all.push_back({{prompt.text, at::zeros({1})}});
  const auto texts = [&](const Group& group) {
    std::vector<std::string> names;
    for (const auto& each : group.of(all)) names.push_back(each.begin()->first);
    return names;
  };
  EXPECT_EQ(texts(groups[0]), (std::vector<std::string>{"a cat", "blurry", "a dog"}));
  EXPECT_EQ(texts(groups[2]), (std::vector<std::string>{"a cat", "blurry"}));
  const Guidance::Picture& last = groups[2].guidance.front().pictures.at(0);
  EXPECT_EQ(last.prompt, 0);
  EXPECT_EQ(last.negative, 1);
  EXPECT_EQ(make_groups(batch, settings, {}, /*has_given=*/true).size(), 1U);
}

// Five replicas generate five pictures at once, one rank in three groups. Within a replica, ranks take two
// groups. Noise is drawn before the first step and in each.
TEST(GroupsOfRanks, GiveTheBitsOfOneBatch) {
  using parallel::degrees;
  const Settings settings = five_large_pictures();
  const Result together = result_of(degrees(5, false, 1, 1, 1, 1), settings, 1);
  const Result in_groups = result_of({}, settings, 3);
  if (cpu_isa() >= Isa::kAvx2 && cpu_isa() < Isa::kAmx) {
    EXPECT_TRUE(in_groups.latents.equal(together.latents));
  }
  EXPECT_LE(relative_error(in_groups.latents, together.latents), 1e-5);
  EXPECT_LE(relative_error(result_of(degrees(1, false, 1, 1, 2, 1), settings, 2).latents, together.latents),
            1e-4);
  EXPECT_LE(relative_error(result_of(degrees(2, false, 1, 1, 1, 1), settings, 2).latents, together.latents),
            1e-4);
}

// Requests of one batch share groups, and each gets its own pictures.
TEST(Groups, GoAcrossRequests) {
  std::vector<Settings> batch;
  for (const uint64_t seed : {1, 2, 3}) batch.push_back(resolve(large_request({"a cat"}, seed), tiny()));
  Engine engine(tiny());
  const std::vector<Result> together = engine.run(batch);
  for (size_t i = 0; i < batch.size(); ++i) {
    const Result alone = engine.run(batch[i]);
    EXPECT_LE(relative_error(together[i].latents, alone.latents), 1e-5) << i;
    EXPECT_LE(pixel_difference(pixels_of(together[i].images), pixels_of(alone.images)), 1) << i;
  }
}

// Nothing is loaded twice, also without a budget. Each picture is handed over when its group is done, and is
// not kept then.
TEST(Groups, AreFinishedOneAfterAnother) {
  const Settings settings = resolve(large_request({"a cat", "a dog", "a house"}), tiny());
  std::vector<std::string> story;
  std::vector<int64_t> steps;
  Observer observer;
  observer.started = [&](Phase phase) { story.emplace_back(phase_name(phase)); };
  observer.decoded_image = [&](int64_t number, const Image&) { story.push_back(std::to_string(number)); };
  observer.progressed = [&](Phase phase, int64_t done, int64_t total) {
    EXPECT_EQ(total, phase == Phase::kDenoise ? 4 : 3);
    if (phase == Phase::kDenoise) steps.push_back(done);
  };
  const Result result = generate(settings, tiny(), observer);
  EXPECT_EQ(story, (std::vector<std::string>{"load text encoder", "encode", "load denoiser", "denoise",
                                             "load decoder", "decode", "0", "1", "denoise", "decode", "2"}));
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 2, 3, 4}));
  EXPECT_TRUE(result.images.empty());
  EXPECT_EQ(result.latents.size(0), 3);
  EXPECT_EQ(generate(settings, tiny()).images.size(), 3U) << "nobody takes them";
}

TEST(Groups, AreNamedByPreviews) {
  const Settings settings = resolve(large_request({"a cat", "a dog", "a house"}), tiny());
  std::vector<int64_t> first, counts;
  Observer observer;
  observer.preview_every = 2;
  observer.previewed = [&](const Preview& preview) {
    first.push_back(preview.first_picture);
    counts.push_back(preview.latents.size(0));
  };
  generate(settings, tiny(), observer);
  EXPECT_EQ(first, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(counts, (std::vector<int64_t>{2, 1}));
}

}  // namespace
}  // namespace tessera::engine
