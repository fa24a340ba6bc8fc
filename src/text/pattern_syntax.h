// The syntax of a tokenizer.json's patterns, which is Oniguruma's.
// https://github.com/kkos/oniguruma/blob/master/doc/RE
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

// `pattern` in ICU's syntax: literals, sets, \s, \S, the categories \p{L}, \p{M} and \p{N}, groups,
// lookahead,
// (?i:...), alternatives and repetitions. Throws Error(kInput) with `where` that names what else it has.
std::string translate_pattern(std::string_view pattern, const std::string& where);

// A pattern of ICU's that matches `text` itself.
std::string escape_pattern(std::string_view text);

}  // namespace tessera::text
