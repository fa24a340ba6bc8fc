// Sums up for the report what a rank has sent, by axis and operation.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "comm/transport.h"
#include "core/json.h"

namespace tessera::job {

class Communication {
 public:
  void add(const comm::Collective& collective, std::chrono::nanoseconds under_way,
           std::chrono::nanoseconds waited);

  // Returns [{`axis`, `operation`, `count`, `bytes` sent by this rank, `seconds` in flight, `waited_seconds`:
  // the part of them in which the rank waited}].
  nlohmann::ordered_json report() const;

 private:
  struct Sum {
    int64_t count = 0;
    int64_t bytes = 0;
    std::chrono::nanoseconds under_way{0}, waited{0};
  };
  std::map<std::pair<std::string, std::string>, Sum> sums_;
};

}  // namespace tessera::job
