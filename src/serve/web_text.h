// The small formats inside HTTP messages: queries, multipart/form-data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::serve {

// In order; a name may occur more than once.
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// Returns the value of the first name that is equal apart from the case of ASCII letters; empty if there is
// none.
std::string_view text_of(const NamedTexts& texts, std::string_view name);
bool equal_names(std::string_view a, std::string_view b);

// Decodes %XX. Returns nothing if a % is not followed by two hexadecimal digits, or if the result is not
// UTF-8 or contains a control character.
std::optional<std::string> decode_percent(std::string_view text);

// The name=value pairs of "a=1&b=x%20y+z", in which + is a space. Nothing if decode_percent() returns
// nothing.
std::optional<NamedTexts> parse_query(std::string_view query);

// A part of a multipart/form-data body (RFC 7578). The views are into the body.
struct FormPart {
  std::string name;
  std::optional<std::string> file_name;
  std::string content_type;  // as sent; empty if absent
  std::string_view data;
};

// `content_type` is the header of the message. Returns nothing for another type and for a body that is not a
// complete form of this kind. At most 1000 parts are allowed, with headers of at most 8 KiB.
std::optional<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body);

}  // namespace tessera::serve
