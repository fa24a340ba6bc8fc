// The parts of an HTTP server that do not need sockets: routes, the heads of answers, ranges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http.h"

namespace tessera::serve {

class Routes {
 public:
  // Each pattern may occur once for a method.
  explicit Routes(std::vector<Route> routes);

  struct Match {
    const Route* route = nullptr;
    std::string methods;  // those that the path accepts, "GET, HEAD, OPTIONS"; empty if no route matches it
    // The values for the {...} of the route. Nothing if they cannot be decoded (decode_percent()).
    std::optional<std::vector<std::string>> parameters = std::vector<std::string>();
  };
  Match find(std::string_view method, std::string_view path) const;

 private:
  struct Pattern {
    Route route;
    std::vector<std::string> segments;
  };
  std::vector<Pattern> patterns_;
};

// The head of an answer, from the status line to the empty line. Characters that would end a line become
// spaces.
std::string write_head(int status, const NamedTexts& headers, const std::string& date);

// The bytes [begin, end) of a file of `size` bytes that "bytes=100-199", "bytes=100-" or "bytes=-100" asks
// for; all of them for another unit, for several ranges, and if there is no header; nothing if the file has
// none of those bytes.
std::optional<std::pair<uint64_t, uint64_t>> parse_range(std::string_view header, uint64_t size);

}  // namespace tessera::serve
