// Repairs damaged text, as ftfy does.
#pragma once

#include <unicode/unistr.h>

namespace tessera::text {

// Does what `ftfy.fix_text(text)` (6.3) does, except that it does not repair text that was decoded with the
// wrong encoding ("Ã©" for "é"; ftfy's fix_encoding), that a line has no maximum length, and that
// normalisation knows the characters of ICU's version of Unicode. Entities of HTML are decoded up to the
// first line that has a '<'.
icu::UnicodeString fix_text(const icu::UnicodeString& text);

}  // namespace tessera::text
