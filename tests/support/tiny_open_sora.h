// The tiny video models of the goldens.
#pragma once

#include "engine/model.h"
#include "tests/support/golden.h"

namespace tessera::engine {

inline const Model& tiny_video() {
  static const Model model = read_model(golden_folder("tiny-open-sora"));
  return model;
}

inline const Model& tiny_video_1_1() {
  static const Model model = read_model(golden_folder("tiny-open-sora-1.1"));
  return model;
}

}  // namespace tessera::engine
