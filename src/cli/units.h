// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::cli {

std::string count_text(uint64_t count);  // "611.4 M"
std::string bytes_text(uint64_t bytes);  // "1.14 GiB"

}  // namespace tessera::cli
