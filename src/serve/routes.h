// What an HTTP server knows without sockets: routes, the heads of answers, ranges.
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
  // A pattern and its method may occur once.
  explicit Routes(std::vector<Route> routes);

  struct Match {
    const Route* route = nullptr;
    std::string methods;  // that the path takes, "GET, HEAD, OPTIONS"; empty if it has no route at all
    // What stands for the {...} of the route. Nothing if that cannot be decoded (decode_percent()).
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
// for; all of them for another unit, for several ranges and without a header; nothing if the file has none of
// them.
std::optional<std::pair<uint64_t, uint64_t>> parse_range(std::string_view header, uint64_t size);

}  // namespace tessera::serve
