// The syntax of a tokenizer.json's patterns, which is Oniguruma's.
// https://github.com/kkos/oniguruma/blob/master/doc/RE
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

// Translates `pattern` into ICU's syntax. It may contain literals, sets, \s, \S, the categories \p{L}, \p{M}
// and \p{N}, groups, lookahead, (?i:...), alternatives and repetitions. Throws Error(kInput) with `where`
// that names any other construct.
std::string translate_pattern(std::string_view pattern, const std::string& where);

// Returns an ICU pattern that matches `text` literally.
std::string escape_pattern(std::string_view text);

}  // namespace tessera::text
