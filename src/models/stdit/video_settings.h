// How Open-Sora reads requests for videos: sizes by name, scores in captions, parts of a long video, and
// references. Prompts may end in a JSON object with what one of them begins from, and name a text for each
// part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/video_request.h"

namespace tessera::models {

// Family::resolve_video.
VideoSettings resolve_open_sora_1_1_video(VideoRequest& request, const VideoInputs& inputs);
VideoSettings resolve_open_sora_1_2_video(VideoRequest& request, const VideoInputs& inputs);

struct PromptSettings {
  std::string text;  // the prompt without them
  // Instead of the request's, for this prompt.
  std::optional<std::string> reference_path = {}, mask_strategy = {};
};

// Reads `TEXT {"reference_path": "boat.png", "mask_strategy": "0"}`. Braces that do not end the prompt, or
// are no JSON, are a part of the text. Throws Error(kUsage) for an object with other keys or values, and for
// braces that name a setting but are no object at the end of the prompt.
PromptSettings split_settings(const std::string& prompt);

// Paths of references, separated by semicolons, without the spaces around them. An empty text has none.
std::vector<std::string> split_paths(const std::string& paths);

// The same without the folders of references, which say something of the machine and not of the video. Only a
// prompt that names a folder changes.
std::string paths_without_folders(const std::string& paths);
std::string prompt_without_folders(const std::string& prompt);

// Reads a mask strategy, "0,0,0,0,1,0.3;...": up to six numbers at a time, those of GivenRange in order, of
// which any from the end may be left out. An empty text has none. Throws Error(kUsage) that names `field`.
std::vector<GivenRange> parse_mask_strategy(const std::string& text, const std::string& field);

// The text of a part of a long video: that of "|0|TEXT|3|TEXT", which names the parts from which its texts
// hold, or the whole prompt. Throws Error(kUsage) for a prompt that begins so, but does not go on so.
std::string prompt_of_loop(const std::string& prompt, int64_t loop);

// Returns `prompt` with a sentence for each score of the request that it does not name itself, as " aesthetic
// score: 6.5.": a model that was trained on captions with scores generates what the prompt's ask for. The
// result is still to be cleaned (text::clean_caption()).
std::string with_scores(const std::string& prompt, const VideoRequest& request);

}  // namespace tessera::models
