// Texts that users wrote, as messages show them.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Returns the text with spaces in the place of control characters: a message is one line, and field() writes
// control characters around the names of fields.
std::string printable(std::string_view text);

}  // namespace tessera
