// Validates and converts UTF-8 text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Returns the position of the first byte that is not part of valid UTF-8 (RFC 3629: no overlong forms, no
// surrogates, at most U+10FFFF), or nothing if all of `text` is valid.
std::optional<size_t> find_invalid_utf8(std::string_view text);

// Returns the Latin-1 form of valid UTF-8, or nothing if a character is not in Latin-1.
std::optional<std::string> to_latin1(std::string_view utf8);

// Returns the UTF-8 form of Latin-1 text.
std::string from_latin1(std::string_view latin1);

// The first `most` bytes of `text`, or fewer, so that no character is cut in half.
std::string_view cut_utf8(std::string_view text, size_t most);

}  // namespace tessera
