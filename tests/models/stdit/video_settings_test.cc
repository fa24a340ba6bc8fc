#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/request.h"
#include "models/stdit/sizes.h"
#include "models/stdit/video_settings.h"
#include "tests/support/golden.h"
#include "tests/support/tiny_open_sora.h"

namespace tessera::engine {
namespace {

using models::prompt_of_loop;
using models::PromptSettings;
using models::split_settings;

const Json& golden_of_requests() {
  static const Json json = read_json(golden_folder("open_sora_request.json"));
  return json;
}

Settings settings_of(const std::string& json, const Model& model = tiny_video()) {
  Json all = {{"prompt", {"a"}}, {"seed", 1}};
  all.update(parse_json(json, "test"));
  return resolve(read_fields(request_fields(), all), model);
}

std::string refusal(const std::string& json, const Model& model = tiny_video()) {
  try {
    settings_of(json, model);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST(VideoRequest, HasTheSizesOfTheTables) {
  for (const std::string& resolution : models::video_resolutions()) {
    for (const auto& [ratio, size] : golden_of_requests().at("sizes").at(resolution).items()) {
      const models::VideoSize expected{size[0], size[1]};
      EXPECT_EQ(models::video_size(resolution, ratio), expected) << resolution << " " << ratio;
      EXPECT_TRUE(models::is_video_size(expected));
    }
  }
  EXPECT_FALSE(models::is_video_size({240, 428}));
}

TEST(VideoRequest, CountsLatents) {
  for (const Json& each : golden_of_requests().at("latents")) {
    const Json& size = each[0];
    Json request = {{"num_frames", size[0]}, {"height", size[1]}, {"width", size[2]}};
    const models::LatentShape latents = settings_of(request.dump()).latents;
    EXPECT_EQ(Json({latents.latent_frames, latents.latent_height, latents.latent_width}), each[1]);
  }
}

TEST(VideoRequest, ReadsSchedulesOfPrompts) {
  for (const Json& each : golden_of_requests().at("schedules")) {
    const auto prompt = each.at("prompt").get<std::string>();
    if (each.at("expected").is_null()) {
      EXPECT_THROW(prompt_of_loop(prompt, 0), Error) << prompt;
      continue;
    }
    std::string text;
    size_t next = 0;
    const Json& parts = each.at("expected");
    for (int64_t loop = 0; loop < 8; ++loop) {
      if (next < parts.size() && parts[next][0] == loop) text = parts[next++][1].get<std::string>();
      EXPECT_EQ(prompt_of_loop(prompt, loop), text) << prompt << " " << loop;
    }
  }
}

TEST(VideoRequest, SplitsSettingsFromPrompts) {
  for (const Json& each : golden_of_requests().at("settings")) {
    const auto prompt = each.at("prompt").get<std::string>();
    const Json& expected = each.at("expected");
    if (expected.is_null()) {
      EXPECT_THROW(split_settings(prompt), Error) << prompt;
      continue;
    }
    const PromptSettings found = split_settings(prompt);
    EXPECT_EQ(found.text, expected[0]) << prompt;
    EXPECT_EQ(found.reference_path.value_or("none"), expected[1].value("reference_path", "none")) << prompt;
    EXPECT_EQ(found.mask_strategy.value_or("none"), expected[1].value("mask_strategy", "none")) << prompt;
  }
}

// Settings are no text, however deep their braces are, up to the limit of a search.
TEST(VideoRequest, TakesDeepBracesInAPromptForAText) {
  const auto nested = [](int depth) {
    std::string text = "a {\"b\": ";
    for (int i = 1; i < depth; ++i) text += "{\"a\": ";
    return text + "0" + std::string(static_cast<size_t>(depth), '}');
  };
  EXPECT_THROW(split_settings(nested(100)), Error);
  ASSERT_NO_THROW(split_settings(nested(101)));
  EXPECT_EQ(split_settings(nested(101)).text, nested(101));
}

// Neither the depth nor the number of its braces can end the program or take it long.
TEST(VideoRequest, TakesAnyBracesInAPrompt) {
  const auto repeated = [](const std::string& part) {
    std::string text;
    for (int i = 0; i < 400'000; ++i) text += part;
    return text;
  };
  for (const std::string& text :
       {repeated("{"), repeated("{}") + "!", repeated(R"({"a":)"), repeated(R"({"a":)") + "0" + repeated("}"),
        R"({"a": )" + repeated("[") + repeated("]") + "}", repeated("{\"") + "}"})
    EXPECT_TRUE(split_settings("a " + text).text.starts_with("a ")) << text.substr(0, 10);
  const std::string deep = R"(a {"reference_path": )" + repeated("[") + repeated("]") + "}";
  EXPECT_THROW(split_settings(deep), Error);
}

TEST(VideoRequest, TakesTheSettingsOfAPromptInsteadOfThoseOfAll) {
  const Settings settings = settings_of(
      R"({"prompt": ["a{\"reference_path\": \"b.png;c.png\", \"mask_strategy\": \"0,1\"}", "a"],
          "reference_path": ["d.png"], "mask_strategy": ["0,0,0,5"]})");
  const std::vector<std::vector<std::string>> paths = {{"b.png", "c.png"}, {"d.png"}};
  EXPECT_EQ(settings.video.references, paths);
  ASSERT_EQ(settings.video.given[0].size(), 1U);
  EXPECT_EQ(settings.video.given[0][0].reference, 1);
  EXPECT_EQ(settings.video.given[0][0].target_start, 0);
  EXPECT_EQ(settings.video.given[1][0].target_start, 5);
  EXPECT_EQ(settings.prompt(0).text, settings.prompt(1).text);
  EXPECT_EQ(settings.negative_prompt(0).null_of, settings.prompt(1).text);
  // A setting may be of all and the other of the prompt.
  const Settings mixed = settings_of(
      R"({"prompt": ["|0|a|1|b{\"mask_strategy\": \"\"}"], "mask_strategy": ["0"], "loop": 2,
          "num_frames": 34})");
  EXPECT_TRUE(mixed.video.given[0].empty());
  EXPECT_EQ(mixed.prompt(0, 1).text, "b aesthetic score: 6.5.");
}

// Nothing says that an image's prompt may hold settings.
TEST(VideoRequest, LeavesTheBracesOfOtherModels) {
  Request request;
  request.prompts = {R"(a {"mask_strategy": 0})"};
  EXPECT_EQ(resolve(request, read_model(golden_folder("tiny-pixart"))).prompt(0).text, request.prompts[0]);
}

TEST(VideoRequest, TakesFramesFromSeveralPlaces) {
  for (const char* text :
       {R"({"align": 2, "loop": 2, "num_frames": 51})",
        R"({"align": 2, "mask_strategy": ["0"], "reference_path": [" a.png ;b.png"]})",
        R"({"align": 2, "prompt": ["a {\"reference_path\": \"a.png\", \"mask_strategy\": \"0\"}"]})"}) {
    const Settings given = settings_of(text);
    EXPECT_TRUE(given.warnings.empty()) << text;
    EXPECT_EQ(given.request.video.align, 2) << text;
    if (!given.video.references[0].empty()) {
      EXPECT_EQ(given.video.references[0][0], "a.png") << text;
    }
  }
}

TEST(VideoRequest, WarnsOfWhatOnlyLongVideosTake) {
  const Settings settings = settings_of(R"({"condition_frame_length": 10, "condition_frame_edit": 0.5})");
  ASSERT_EQ(settings.warnings.size(), 1U);
  EXPECT_EQ(spell(settings.warnings[0]),
            "condition_frame_length, condition_frame_edit have no effect: loop is 1, and no part continues "
            "another");
  EXPECT_FALSE(settings.request.video.condition_frame_length || settings.request.video.condition_frame_edit);
  EXPECT_TRUE(settings_of(R"({"loop": 2, "num_frames": 51, "condition_frame_edit": 0.5})").warnings.empty());
  const Settings alone = settings_of(R"({"align": 2})");
  ASSERT_EQ(alone.warnings.size(), 1U);
  EXPECT_EQ(spell(alone.warnings[0]), "align has no effect: no frames are given");
  const Settings parts = settings_of(R"({"loop": 2, "num_frames": 51, "prompt": ["|0|a|2|b", "|0|a|1|b"]})");
  ASSERT_EQ(parts.warnings.size(), 1U);
  EXPECT_EQ(spell(parts.warnings[0]), "'|0|a|2|b' has texts for more parts than the video's 2 (loop)");
  const Settings later = settings_of(R"({"prompt": ["|1|a", "|a|", "|1", "||"]})");
  ASSERT_EQ(later.warnings.size(), 1U);
  EXPECT_EQ(later.warnings[0],
            "'|1|a' names no text for part 0, so it is one prompt for all parts; |0|TEXT names it");
}

TEST(VideoRequest, ChoosesAsPublished) {
  const Settings settings = settings_of("{}");
  EXPECT_EQ(settings.model_height, 240);
  EXPECT_EQ(settings.model_width, 426);
  EXPECT_EQ(settings.width, 424);
  EXPECT_EQ(settings.frames, 51);
  EXPECT_EQ(settings.latents.latent_frames, 15);
  EXPECT_EQ(settings.prompt(0).text, "a aesthetic score: 6.5.");
  EXPECT_EQ(settings.negative_prompt(0).null_of, settings.prompt(0).text);
  EXPECT_TRUE(settings.warnings.empty());
  EXPECT_FALSE(settings_of(R"({"negative_prompt": ["b"]})").negative_prompt(0).null_of);
  EXPECT_EQ(settings_of(R"({"aspect_ratio": "1:1"})").height, 320);
  EXPECT_EQ(settings_of(R"({"resolution": "480p"})").model_width, 854);
  const std::vector<std::string> of_size = {"frames will be 96 x 128: sides are multiples of 8"};
  EXPECT_EQ(settings_of(R"({"height": 100, "width": 130})").warnings, of_size);
}

// Version 1.1 makes a latent of each frame, knows no scores, and shows one frame for three.
TEST(VideoRequest, ChoosesAsVersion11IsPublished) {
  const Settings settings = settings_of("{}", tiny_video_1_1());
  EXPECT_EQ(settings.model_width, 426);
  EXPECT_EQ(settings.frames, 16);
  EXPECT_EQ(settings.latents.latent_frames, 16);
  EXPECT_EQ(settings.steps, 100);
  EXPECT_EQ(settings.guidance, 7);
  EXPECT_EQ(settings.prompt(0).text, "a");
  EXPECT_EQ(settings.video.shown_fps, 8);
  EXPECT_EQ(settings.video.conditions.at("fps"), 24);
  EXPECT_EQ(settings_of(R"({"fps": 30, "frame_interval": 1})", tiny_video_1_1()).video.shown_fps, 30);
  EXPECT_EQ(settings_of("{}").video.shown_fps, 24);
  const Settings parts = settings_of(R"({"loop": 3, "num_frames": 10})", tiny_video_1_1());
  EXPECT_EQ(parts.video.repeated, 4);
  EXPECT_EQ(parts.all_frames(), 10 + 2 * 6);
  const Settings again = resolve(parts.request, tiny_video_1_1());
  EXPECT_EQ(write_fields(request_fields(), again.request), write_fields(request_fields(), parts.request));
  for (const auto& [json, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"align": 5})", "[align] Open-Sora 1.1 does not support it"},
           {R"({"aesthetic_score": 6})", "[aesthetic_score] Open-Sora 1.1 does not support it"},
           {R"({"loop": 2, "num_frames": 4})",
            "[num_frames] a part of a long video must have more than the 4 frames"}})
    EXPECT_NE(refusal(json, tiny_video_1_1()).find(message), std::string::npos) << json;
  EXPECT_NE(refusal(R"({"frame_interval": 2})").find("[frame_interval] Open-Sora 1.2 does not support it"),
            std::string::npos);
}

// Rank 0 sends the request with every choice made, and the others resolve it again.
TEST(VideoRequest, IsResolvedAgainToTheSame) {
  for (const char* const json :
       {"{}", R"({"resolution": "144p", "aspect_ratio": "1:1"})", R"({"loop": 3, "num_frames": 34})",
        R"({"reference_path": ["a.png"], "mask_strategy": ["0"], "motion_score": 2})",
        R"({"prompt": ["a {\"reference_path\": \"b.png\"}", "c"], "mask_strategy": ["0", ""]})"}) {
    const Settings once = settings_of(json), again = resolve(once.request, tiny_video());
    EXPECT_EQ(write_fields(request_fields(), again.request), write_fields(request_fields(), once.request));
    EXPECT_EQ(again.model_width, once.model_width) << json;
    EXPECT_EQ(again.prompt(0).text, once.prompt(0).text) << json;
    EXPECT_EQ(again.video.references, once.video.references) << json;
  }
}

// A request that was written without given frames runs again without a warning.
TEST(VideoRequest, HasAnAlignmentWhereFramesAreGivenAlone) {
  EXPECT_EQ(settings_of("{}").request.video.align, std::nullopt);
  EXPECT_EQ(settings_of(R"({"reference_path": ["a.png"], "mask_strategy": ["0"]})").request.video.align, 5);
  EXPECT_EQ(settings_of(R"({"loop": 2, "num_frames": 34})").request.video.align, 5);
}

TEST(VideoRequest, RefusesInOneLine) {
  for (const auto& [json, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"resolution": "240p", "height": 240})", "[resolution] '240p' is a size by name"},
           {R"({"height": 4, "width": 48})",
            "[height] must be at least 8, got 4; the nearest valid size is 8"},
           {R"({"height": 4, "width": 7})",
            "[height] must be at least 8, got 4; the nearest valid size is 8; [width] must be at least 8, "
            "got "
            "7; the nearest valid size is 8"},
           {R"({"resolution": "241p"})", "[resolution]"},
           {R"({"num_frames": 0})", "[num_frames]"},
           {R"({"scheduler": "euler"})", "[scheduler] Open-Sora 1.2 has one sampler only (RFLOW)"},
           {R"({"scheduler_option": ["use_timestep_transform=false"]})",
            "[scheduler_option] Open-Sora 1.2 has one sampler only (RFLOW), got "
            "'use_timestep_transform=false'; leave it out"},
           {R"({"max_sequence_length": 41})", "[max_sequence_length] must be at most the model's 40, got 41"},
           {R"({"prompt": ["|0|a|b"]})", "[prompt] a prompt for the parts of a long video"},
           {R"({"loop": 2, "output_type": "latent"})", "[loop] a video of 2 parts is decoded between them"},
           {R"({"loop": 2, "condition_frame_length": 4})",
            "[condition_frame_length] must be a multiple of the 5 latent frames of a clip, got 4; the "
            "nearest valid length is 5"},
           {R"({"loop": 2, "num_frames": 17})",
            "[num_frames] a part of a long video must have more than the 17 frames of the part before with "
            "which it begins, got 17; num_frames 34 would do"},
           {R"({"reference_path": ["a.png;"], "mask_strategy": ["0"]})",
            "[reference_path] 'a.png;' names no file before or after a ';'"},
           {R"({"reference_path": ["a.png"]})", "[reference_path] 'a.png' has no effect without"},
           {R"({"mask_strategy": ["0"]})",
            "[mask_strategy] has no effect without reference_path, of which it takes"},
           {R"({"reference_path": ["a.png"], "mask_strategy": ["0,1"]})", "there is no reference 1"},
           {R"({"reference_path": ["a.png"], "mask_strategy": ["0,-2"]})", "there is no reference -2"},
           {R"({"reference_path": ["a.png"], "mask_strategy": ["1"]})", "[mask_strategy] there is no part 1"},
           {R"({"reference_path": ["a.png"], "mask_strategy": ["9223372036854775807"]})",
            "[mask_strategy] there is no part 9223372036854775807: the video has 1 (loop)"},
           {R"({"reference_path": ["a.png"], "mask_strategy": ["x"]})", "[mask_strategy] 'x' holds 'x'"},
           {R"({"reference_path": ["a.png"], "mask_strategy": ["0.5"]})",
            "[mask_strategy] '0.5' holds '0.5' where a whole number is expected"},
           {R"({"reference_path": ["a.png; "], "mask_strategy": ["0"]})", "names no file before or after"},
           {R"({"prompt": ["a {\"mask_strategy\": 0}"]})",
            "[prompt] the value of 'mask_strategy' must be text in quotes, got 0; the form"},
           {R"({"prompt": ["a {\"seed\": \"1\"}"]})", "[prompt] a prompt has no setting 'seed'"},
           {R"({"prompt": ["a\n{\"mask_strategy\": \"0\""]})",
            "[prompt] 'a {\"mask_strategy\": \"0\"' has settings that are not JSON at its end"},
           {R"({"prompt": ["a {\"mask_strategy\": \"x\"}"]})", "[prompt: mask_strategy] 'x' holds 'x'"},
           {R"({"prompt": ["a {\"reference_path\": \"b\"}"]})",
            "[prompt: reference_path] 'b' has no effect without"},
           {R"({"eta": 0.5})", "[eta]"},
           {R"({"clip_skip": 1})", "[clip_skip] Open-Sora 1.2 does not support it"}}) {
    EXPECT_NE(refusal(json).find(message), std::string::npos) << json << ": " << refusal(json);
    EXPECT_EQ(refusal(json).find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::engine
