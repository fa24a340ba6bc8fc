#include "serve/job_id.h"

#include <algorithm>
#include <cstdint>

namespace tessera::serve {
namespace {

constexpr std::string_view kDigits = "0123456789abcdefghjkmnpqrstvwxyz";  // in the order of their codes
constexpr size_t kTimeLength = 10, kRandomLength = 26;                    // of five bits each

}  // namespace

std::string new_job_id(WallTime now, const RandomBytes& random) {
  std::string id(kTimeLength + kRandomLength, '0');
  auto time = static_cast<uint64_t>(now.time_since_epoch().count());
  for (size_t i = kTimeLength; i-- > 0; time >>= 5) id[i] = kDigits[time & 31];
  std::array<std::byte, 16> bytes = {};
  random(bytes);
  uint32_t bits = 0;
  int count = 0;
  size_t next = 0;
  for (size_t i = kTimeLength; i < id.size(); ++i) {
    if (count < 5) {  // the last digit has three bits and two zeros
      bits = bits << 8 | (next < bytes.size() ? std::to_integer<uint32_t>(bytes[next++]) : 0);
      count += 8;
    }
    count -= 5;
    id[i] = kDigits[bits >> count & 31];
  }
  return id;
}

bool is_job_id(std::string_view text) {
  return text.size() == kTimeLength + kRandomLength &&
         std::all_of(text.begin(), text.end(), [](char each) { return kDigits.find(each) != kDigits.npos; });
}

}  // namespace tessera::serve
