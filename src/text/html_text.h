// The text of HTML without its markup.
#pragma once

#include <unicode/unistr.h>

namespace tessera::text {

// Returns what `BeautifulSoup(markup, "html.parser").text` (4.15) gives with the html.parser of
// Python 3.11.7, in which a comment ends at "-->" or "-- >" alone and an unfinished tag is text. Later
// versions of Python read damaged markup in another way. `markup` must be in lower case. Throws Error(kUsage)
// for "<![" without the name of a section behind it, which makes BeautifulSoup raise.
icu::UnicodeString html_text(const icu::UnicodeString& markup);

}  // namespace tessera::text
