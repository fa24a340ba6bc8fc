#include "engine/observer.h"

namespace tessera::engine {

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kLoadTextEncoder:
      return "load text encoder";
    case Stage::kEncode:
      return "encode";
    case Stage::kLoadDenoiser:
      return "load denoiser";
    case Stage::kDenoise:
      return "denoise";
    case Stage::kLoadDecoder:
      return "load decoder";
    case Stage::kDecode:
      return "decode";
  }
  return "";
}

bool is_cancelled(const Observer& observer) {
  return observer.cancelled && observer.cancelled();
}

void check_cancelled(const Observer& observer) {
  if (is_cancelled(observer)) throw Cancelled();
}

}  // namespace tessera::engine
