// The scores that Open-Sora's captions end in. A model that was trained on captions with scores generates
// what the scores of the prompt ask for.
#pragma once

#include <optional>
#include <string>

namespace tessera::models {

struct CaptionScores {
  std::optional<double> aesthetic = {};  // published models: 4 to 7; Open-Sora asks for 6.5 by default
  std::optional<double> motion = {};     // mean optical flow
  std::optional<std::string> camera_motion = {};  // "pan right", "zoom in", ...
};

// Returns `prompt` with a sentence for each score that it does not name itself, as " aesthetic score: 6.5.".
// The result is still to be cleaned (text::clean_caption()).
std::string with_scores(const std::string& prompt, const CaptionScores& scores);

}  // namespace tessera::models
