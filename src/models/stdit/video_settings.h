// How Open-Sora reads requests for videos: sizes by name, scores in captions, parts of a long video, and
// references. A prompt may end in a JSON object with its own references, and give a text for each part.
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
  std::string text;  // the prompt without the settings
  // In place of the request's, for this prompt.
  std::optional<std::string> reference_path = {}, mask_strategy = {};
};

// Reads `TEXT {"reference_path": "boat.png", "mask_strategy": "0"}`. Braces that do not end the prompt, or
// are not JSON, are part of the text. Throws Error(kUsage) for an object with other keys or values, and for
// braces that name a setting but are not an object at the end of the prompt.
PromptSettings split_settings(const std::string& prompt);

// Splits paths of references at semicolons, and removes spaces around them. An empty text gives none.
std::vector<std::string> split_paths(const std::string& paths);

// The same without the folders of references, which describe the machine instead of the video. Only a prompt
// that names a folder changes.
std::string paths_without_folders(const std::string& paths);
std::string prompt_without_folders(const std::string& prompt);

// Reads a mask strategy, "0,0,0,0,1,0.3;...": up to six numbers for each range, those of GivenRange in order;
// trailing ones may be left out. An empty text gives no range. Throws Error(kUsage) that names `field`.
std::vector<GivenRange> parse_mask_strategy(const std::string& text, const std::string& field);

// The text of a part of a long video: from "|0|TEXT|3|TEXT", which names the parts at which its texts begin,
// or the whole prompt. Throws Error(kUsage) for a prompt that begins like this but does not continue so.
std::string prompt_of_loop(const std::string& prompt, int64_t loop);

// Returns `prompt` with a sentence for each score in the request that the prompt does not contain itself,
// such as " aesthetic score: 6.5.": a model that was trained on captions with scores generates what the
// scores in the prompt ask for. The result has yet to be cleaned (text::clean_caption()).
std::string with_scores(const std::string& prompt, const VideoRequest& request);

}  // namespace tessera::models
