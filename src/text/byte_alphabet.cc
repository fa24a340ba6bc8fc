#include "text/byte_alphabet.h"

#include <array>

namespace tessera::text {
namespace {

// Bytes that are printable in Latin-1 map to themselves, the others to characters from U+0100 on.
std::array<std::string, 256> make_byte_characters() {
  std::array<std::string, 256> characters;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < characters.size(); ++byte) {
    const bool printable =
        (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte <= 0xff && byte != 0xad);  // U+00AD: soft hyphen
    const unsigned code = printable ? byte : next++;
    if (code < 0x80) {
      characters[byte] = static_cast<char>(code);
    } else {
      characters[byte] = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    }
  }
  return characters;
}

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  static const std::array<std::string, 256> characters = make_byte_characters();
  std::string result;
  result.reserve(2 * bytes.size());
  for (const char byte : bytes) result += characters[static_cast<unsigned char>(byte)];
  return result;
}

}  // namespace tessera::text
