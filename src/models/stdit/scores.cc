#include "models/stdit/scores.h"

#include <fmt/format.h>

namespace tessera::models {

std::string with_scores(const std::string& prompt, const CaptionScores& scores) {
  std::string result = prompt;
  const auto append = [&](const char* name, const std::string& value) {
    if (prompt.find(name) == std::string::npos) result += fmt::format(" {} {}.", name, value);
  };
  if (scores.aesthetic) append("aesthetic score:", fmt::format("{:.1f}", *scores.aesthetic));
  if (scores.motion) append("motion score:", fmt::format("{:.1f}", *scores.motion));
  if (scores.camera_motion) append("camera motion:", *scores.camera_motion);
  return result;
}

}  // namespace tessera::models
