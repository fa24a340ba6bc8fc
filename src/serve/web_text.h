// The small formats inside of HTTP messages: queries, multipart/form-data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::serve {

// In order; a name may occur more than once.
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// Returns the value of the first name that is equal but for the case of ASCII letters; empty if there is
// none.
std::string_view text_of(const NamedTexts& texts, std::string_view name);
bool equal_names(std::string_view a, std::string_view b);

// Decodes %XX. Nothing if a % has no two hexadecimal digits behind it, or if the text is not UTF-8 or has a
// control character then.
std::optional<std::string> decode_percent(std::string_view text);

// The name=value pairs of "a=1&b=x%20y+z", in which + is a space. Nothing where decode_percent() gives
// nothing.
std::optional<NamedTexts> parse_query(std::string_view query);

// A part of a multipart/form-data body (RFC 7578). The views are into the body.
struct FormPart {
  std::string name;
  std::optional<std::string> file_name;
  std::string content_type;  // as sent; empty if it is not
  std::string_view data;
};

// `content_type` is the header of the message. Nothing for another type and for a body that is not such a
// form, as one without its end; parts are at most 1000, their headers at most 8 KiB.
std::optional<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body);

}  // namespace tessera::serve
