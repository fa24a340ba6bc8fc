// The tiny video model of the goldens.
#pragma once

#include "engine/model.h"
#include "tests/support/golden.h"

namespace tessera::engine {

inline const Model& tiny_video() {
  static const Model model = read_model(golden_folder("tiny-open-sora"));
  return model;
}

}  // namespace tessera::engine
