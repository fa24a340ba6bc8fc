#include "job/communication.h"

namespace tessera::job {

void Communication::add(const comm::Collective& collective, std::chrono::nanoseconds under_way,
                        std::chrono::nanoseconds waited) {
  Sum& sum = sums_[{std::string(collective.axis), std::string(collective.name)}];
  ++sum.count;
  sum.bytes += collective.bytes;
  sum.under_way += under_way;
  sum.waited += waited;
}

nlohmann::ordered_json Communication::report() const {
  const auto seconds = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  auto json = nlohmann::ordered_json::array();
  for (const auto& [name, sum] : sums_) {
    json.push_back({{"axis", name.first},
                    {"operation", name.second},
                    {"count", sum.count},
                    {"bytes", sum.bytes},
                    {"seconds", seconds(sum.under_way)},
                    {"waited_seconds", seconds(sum.waited)}});
  }
  return json;
}

}  // namespace tessera::job
