#include "engine/observer.h"

namespace tessera {

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kLoadTextEncoder:
      return "load text encoder";
    case Phase::kEncode:
      return "encode";
    case Phase::kLoadVideoEncoder:
      return "load encoder";
    case Phase::kEncodeFrames:
      return "encode references";
    case Phase::kLoadDenoiser:
      return "load denoiser";
    case Phase::kDenoise:
      return "denoise";
    case Phase::kLoadDecoder:
      return "load decoder";
    case Phase::kDecode:
      return "decode";
  }
  return "";
}

namespace engine {

bool is_cancelled(const Observer& observer) {
  return observer.cancelled && observer.cancelled();
}

void check_cancelled(const Observer& observer) {
  if (is_cancelled(observer)) throw Cancelled();
}

}  // namespace engine
}  // namespace tessera
