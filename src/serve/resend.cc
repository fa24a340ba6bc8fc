// Detects requests that are sent again.
#include <cstdint>

#include "core/text.h"
#include "serve/http.h"
#include "serve/job_service.h"

namespace tessera::serve {
namespace {

constexpr size_t kMostKey = 255;

}  // namespace

// FNV-1a in 128 bits. The sizes of texts are hashed too, so that the boundaries between them count.
std::string hash_of(std::initializer_list<std::string_view> texts) {
  using Wide = unsigned __int128;
  constexpr Wide kPrime = (Wide(1) << 88) + 0x13b;
  Wide hash = (Wide(0x6c62272e07bb0142) << 64) + 0x62b821756295c58d;
  const auto add = [&](std::string_view bytes) {
    for (const char each : bytes) hash = (hash ^ static_cast<unsigned char>(each)) * kPrime;
  };
  for (const std::string_view text : texts) {
    add(std::to_string(text.size()) + ":");
    add(text);
  }
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(hash >> 64), static_cast<uint64_t>(hash));
}

void read_resend(const HttpRequest& request, JobRequest& job) {
  const std::string_view key = request.header("idempotency-key");
  if (!key.empty() && key.size() <= kMostKey) job.idempotency_key = std::string(key);
  job.body_hash = hash_of({request.path, request.body});
  const std::string_view count = request.header("x-stainless-retry-count");
  job.is_resend = !count.empty() && count != "0";
}

}  // namespace tessera::serve
