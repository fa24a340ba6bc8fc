// Fuzzes the readers of the small formats inside of HTTP messages: what is decoded is encoded again, parts of
// a form lie in its body, ranges in their file.
#include <cstdint>
#include <string>
#include <string_view>

#include "core/text.h"
#include "fuzz/check.h"
#include "serve/routes.h"
#include "serve/web_text.h"

namespace serve = tessera::serve;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = tessera::decode_base64(text)) {
    const auto again = tessera::decode_base64(tessera::encode_base64(*bytes));
    tessera::fuzz::require(again == bytes, "Base64 is decoded to the same bytes again");
  }
  serve::decode_percent(text);
  if (const auto pairs = serve::parse_query(text))
    tessera::fuzz::require(pairs->size() <= size + 1, "a pair has a character of the query or its end");
  const size_t line = std::min(text.find('\n'), size);
  const std::string_view body = text.substr(std::min(line + 1, size));
  if (const auto parts = serve::parse_form(text.substr(0, line), body)) {
    for (const auto& part : *parts)
      tessera::fuzz::require(
          part.data.empty() || (part.data.begin() >= body.begin() && part.data.end() <= body.end()),
          "a part lies within the body");
  }
  if (const auto range = serve::parse_range(text, 1000))
    tessera::fuzz::require(range->first <= range->second && range->second <= 1000,
                           "a range lies within the file");
  const serve::Routes routes({{"GET", "/v1/jobs/{id}/events", {}}, {"POST", "/v1/jobs", {}}});
  const auto match = routes.find("GET", text);
  tessera::fuzz::require(match.route == nullptr || !match.parameters || match.parameters->size() == 1,
                         "a route has as many parameters as its pattern");
  const std::string event = serve::write_event({.name = {}, .data = std::string(text)});
  tessera::fuzz::require(event.find("\n\n") == event.size() - 2, "an event has no empty line but its last");
  return 0;
}
