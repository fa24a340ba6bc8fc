#include "models/stdit/scores.h"

#include <gtest/gtest.h>

#include "text/caption_cleaner.h"

namespace tessera::models {
namespace {

// The strings are those of `append_score_to_prompts` of Open-Sora 1.2.
TEST(CaptionScores, FollowThePromptInSentences) {
  EXPECT_EQ(with_scores("a cat", {}), "a cat");
  EXPECT_EQ(with_scores("a cat", {.aesthetic = 6.5}), "a cat aesthetic score: 6.5.");
  EXPECT_EQ(with_scores("A cat.", {.aesthetic = 6, .motion = 0.25, .camera_motion = "pan right"}),
            "A cat. aesthetic score: 6.0. motion score: 0.2. camera motion: pan right.");
  EXPECT_EQ(with_scores("", {.motion = 10.35}), " motion score: 10.3.");
}

TEST(CaptionScores, AreNotNamedTwice) {
  EXPECT_EQ(with_scores("a cat, motion score: 3", {.aesthetic = 5.5, .motion = 1, .camera_motion = "static"}),
            "a cat, motion score: 3 aesthetic score: 5.5. camera motion: static.");
  EXPECT_EQ(with_scores("Motion score: 3", {.motion = 1}), "Motion score: 3 motion score: 1.0.");
}

TEST(CaptionScores, SurviveCleaning) {
  EXPECT_EQ(text::clean_caption(with_scores("A <b>cat</b>.", {.aesthetic = 6.5})),
            "a cat. aesthetic score: 6.5.");
}

}  // namespace
}  // namespace tessera::models
