#include "models/stdit/video_settings.h"

#include <gtest/gtest.h>

#include "text/caption_cleaner.h"

namespace tessera::models {
namespace {

VideoRequest scores(double aesthetic = 0, double motion = 0, const std::string& camera_motion = "") {
  VideoRequest request;
  request.aesthetic_score = aesthetic;
  request.motion_score = motion;
  if (!camera_motion.empty()) request.camera_motion = camera_motion;
  return request;
}

// The strings are those of `append_score_to_prompts` of Open-Sora 1.2.
TEST(CaptionScores, FollowThePromptInSentences) {
  EXPECT_EQ(with_scores("a cat", {}), "a cat");
  EXPECT_EQ(with_scores("a cat", scores(6.5)), "a cat aesthetic score: 6.5.");
  EXPECT_EQ(with_scores("A cat.", scores(6, 0.25, "pan right")),
            "A cat. aesthetic score: 6.0. motion score: 0.2. camera motion: pan right.");
  EXPECT_EQ(with_scores("", scores(0, 10.35)), " motion score: 10.3.");
}

TEST(CaptionScores, AreNotNamedTwice) {
  EXPECT_EQ(with_scores("a cat, motion score: 3", scores(5.5, 1, "static")),
            "a cat, motion score: 3 aesthetic score: 5.5. camera motion: static.");
  EXPECT_EQ(with_scores("Motion score: 3", scores(0, 1)), "Motion score: 3 motion score: 1.0.");
}

TEST(CaptionScores, SurviveCleaning) {
  EXPECT_EQ(text::clean_caption(with_scores("A <b>cat</b>.", scores(6.5))), "a cat. aesthetic score: 6.5.");
}

}  // namespace
}  // namespace tessera::models
