// Repairs damaged text, as ftfy does.
#pragma once

#include <unicode/unistr.h>

namespace tessera::text {

// Does what `ftfy.fix_text(text)` (6.3) does, with three exceptions: text that was decoded with the wrong
// encoding is not repaired ("Ã©" for "é"; ftfy's fix_encoding), the length of lines is not limited, and
// normalisation uses ICU's version of Unicode. HTML entities are decoded up to the first line that contains a
// '<'.
icu::UnicodeString fix_text(const icu::UnicodeString& text);

}  // namespace tessera::text
