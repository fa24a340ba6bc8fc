#include "core/user_text.h"

namespace tessera {

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return result;
}

}  // namespace tessera
