// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

std::string count_text(uint64_t count);  // "611.4 M"
std::string bytes_text(uint64_t bytes);  // "1.14 GiB"
// In milliseconds, with the three digits that count, whatever the size.
std::string milliseconds_text(double seconds);
// The number alone, to four digits or to the second.
std::string seconds_text(double seconds);

}  // namespace tessera
